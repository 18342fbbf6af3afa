"""Cells as exact numbers, and numbers as people read them."""

from __future__ import annotations

import decimal
import re
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

from hexprefect.text2sql.encoding import type_names

NUMERIC_TYPES = frozenset({"integer", "number", "decimal"})
_WRAPPED_TYPES = frozenset({*type_names.values(), "other"}) - {"boolean", "integer", "text"}
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,4})?")
_MOST_DIGITS = 1000
"""Before or after the point. A text such as `9e1234567`, of a hash, is no number of that many."""


def exactly() -> AbstractContextManager[decimal.Context]:
    """Reckon with every digit of such numbers: by default Python keeps 28 of them."""
    return decimal.localcontext(prec=4 * _MOST_DIGITS)


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
    if isinstance(cell, int):
        number = Decimal(cell)
    else:
        text = str(cell)
        if len(text) > 2 * _MOST_DIGITS or not _NUMBER.fullmatch(text):
            return None
        number = Decimal(text)
    smallest = number.as_tuple().exponent
    fits = isinstance(smallest, int) and smallest >= -_MOST_DIGITS
    return number if fits and number.adjusted() < _MOST_DIGITS else None


def shown_number(number: Decimal) -> str:
    """With thin groups of three and no exponent: 1 234 567.89."""
    with exactly():
        return f"{number.normalize():,f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def shown_difference(before: Decimal, now: Decimal) -> str:
    """What a number became: `400 → 412 (+12, +3.0 %)`."""
    text = f"{shown_number(before)} → {shown_number(now)}"
    if before == now:
        return f"{shown_number(now)}, unchanged"
    with exactly():
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
