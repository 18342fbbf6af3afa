"""Conditions of a SELECT, taken apart."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp


def parts_of(condition: exp.Expr) -> Iterator[exp.Expr]:
    """What AND joins, whatever its parentheses: each must hold for the whole to hold."""
    inner = condition.unnest()
    if isinstance(inner, exp.And):
        yield from parts_of(inner.this)
        yield from parts_of(inner.expression)
    else:
        yield inner
