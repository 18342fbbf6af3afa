"""Cells as exact numbers, and numbers as people read them."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

from hexprefect.text2sql.encoding import type_names

NUMERIC_TYPES = frozenset({"integer", "number", "decimal"})
_WRAPPED_TYPES = frozenset({*type_names.values(), "other"}) - {"boolean", "integer", "text"}
_MOST_DIGITS = 400
"""Of a number: a text such as `7e999999` is an identifier, and no amount is that long."""


def plain_cell(cell: Any, kind: str | None = None) -> Any:
    """The value of a cell which is wrapped with its type.

    Args:
        cell: as `hexprefect.text2sql.encoding` writes it.
        kind: the column's type where it is known: a JSON object may look like a wrapped cell.
    """
    if not isinstance(cell, dict) or cell.keys() != {"type", "value"}:
        return cell
    if cell["type"] == "json":
        is_wrapped = kind in (None, "mixed") or cell["value"] is None
    else:
        is_wrapped = kind in (None, "mixed") and cell["type"] in _WRAPPED_TYPES
    return cell["value"] if is_wrapped else cell


def as_number(cell: Any) -> Decimal | None:
    """The cell as an exact number, or None when it is not one."""
    cell = plain_cell(cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        number = Decimal(str(cell))
    except decimal.InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > _MOST_DIGITS:
        return None
    return number


def shown_number(number: Decimal) -> str:
    """With thin groups of three and no exponent: 1 234 567.89."""
    return f"{number.normalize():,f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def shown_difference(before: Decimal, now: Decimal) -> str:
    """What a number became: `400 → 412 (+12, +3.0 %)`."""
    text = f"{shown_number(before)} → {shown_number(now)}"
    if before == now:
        return f"{shown_number(now)}, unchanged"
    difference = now - before
    sign = "+" if difference > 0 else "−"
    change = f"{sign}{shown_number(abs(difference))}"
    if before:
        change += f", {sign}{abs(100 * difference / before):.1f} %"
    return f"{text} ({change})"


def shown_cell(cell: Any) -> str:
    """A cell as text."""
    cell = plain_cell(cell)
    if cell is None:
        return "NULL"
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(cell)
