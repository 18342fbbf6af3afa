"""Cells as exact numbers, and numbers as people read them."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

NUMERIC_TYPES = frozenset({"integer", "number", "decimal"})


def plain_cell(cell: Any) -> Any:
    """The value of a cell of a `mixed` column, which may be wrapped with its type."""
    return cell["value"] if isinstance(cell, dict) and cell.keys() == {"type", "value"} else cell


def as_number(cell: Any) -> Decimal | None:
    """The cell as an exact number, or None when it is not one."""
    cell = plain_cell(cell)
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return None
    try:
        number = Decimal(str(cell))
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None


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
