"""Whether a result has the shape that its report file expects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from hexprefect.reports.file import ColumnCheck, Expectation
from hexprefect.reports.numbers import as_number, exactly, shown_cell, shown_number
from hexprefect.reports.outcome import Finding, ItemOutcome

_NUMBERS = ("integer", "number", "decimal")
_EXAMPLES = 3


def check_result(
    expect: Expectation, outcome: ItemOutcome, before: ItemOutcome | None = None
) -> tuple[Finding, ...]:
    """Check every expectation.

    Args:
        expect: what the report file says.
        outcome: an item that has rows.
        before: the same item's outcome of an earlier night, for `change_at_most`.
    """
    return tuple(_findings(expect, outcome, before))


def _findings(
    expect: Expectation, outcome: ItemOutcome, before: ItemOutcome | None
) -> Iterator[Finding]:
    if expect.columns is not None:
        wanted = [column.casefold() for column in expect.columns]
        found = [column.casefold() for column in outcome.columns]
        yield Finding(
            f"the columns are {', '.join(expect.columns)}",
            wanted == found,
            "" if wanted == found else f"they are {', '.join(outcome.columns) or 'none'}",
        )
    if expect.rows is not None:
        count, least, most = len(outcome.rows), expect.rows.min, expect.rows.max
        met = count >= least and (most is None or (count <= most and not outcome.truncated))
        more = " or more" if outcome.truncated else ""
        yield Finding(_rows_words(least, most), met, "" if met else f"there are {count}{more}")
    for column, kind in expect.types.items():
        yield _check_type(outcome, column, kind)
    for check in expect.checks:
        yield from _check_column(check, outcome, before)


def column_values(outcome: ItemOutcome, column: str) -> tuple[Any, ...] | None:
    """The cells of a column, ignoring case; None when there is no such column."""
    folded = [name.casefold() for name in outcome.columns]
    if column.casefold() not in folded:
        return None
    index = folded.index(column.casefold())
    return tuple(row[index] for row in outcome.rows)


def _rows_words(least: int, most: int | None) -> str:
    if most is None:
        return f"there are at least {least} rows"
    if least == most:
        return f"there {'is 1 row' if least == 1 else f'are {least} rows'}"
    return f"there are {least} to {most} rows"


def _check_type(outcome: ItemOutcome, column: str, kind: str) -> Finding:
    words = f"{column} is {kind}"
    folded = [name.casefold() for name in outcome.columns]
    if column.casefold() not in folded:
        return _no_column(words, column)
    found = outcome.types[folded.index(column.casefold())]
    # A column without any value has no type; SQLite gives a sum as integer or number by its value.
    met = found in (kind, "null") or (kind in ("number", "decimal") and found in _NUMBERS)
    return Finding(words, met, "" if met else f"it is {found}")


def _check_column(
    check: ColumnCheck, outcome: ItemOutcome, before: ItemOutcome | None
) -> Iterator[Finding]:
    column = check.column
    values = column_values(outcome, column)
    if values is None:
        yield _no_column(f"{column} is checked", column)
        return
    present = [value for value in values if value is not None]
    if check.not_null:
        missing = len(values) - len(present)
        yield Finding(f"{column} is never NULL", not missing, f"{missing} are" if missing else "")
    if check.unique:
        shown = [shown_cell(value) for value in present]
        twice = (
            sorted({value for value in shown if shown.count(value) > 1})
            if len(set(shown)) < len(shown)
            else []
        )
        yield Finding(f"{column} is unique", not twice, _examples(twice, "stands twice"))
    if check.one_of is not None:
        allowed = {shown_cell(value) for value in check.one_of}
        strange = [shown_cell(value) for value in present if shown_cell(value) not in allowed]
        words = f"{column} is one of {', '.join(sorted(allowed))}"
        yield Finding(words, not strange, _examples(strange, "is not"))
    if check.at_least is not None:
        least = Decimal(str(check.at_least))
        yield _check_bound(f"{column} ≥ {shown_number(least)}", present, lambda x: x >= least)
    if check.at_most is not None:
        most = Decimal(str(check.at_most))
        yield _check_bound(f"{column} ≤ {shown_number(most)}", present, lambda x: x <= most)
    if check.change_at_most is not None:
        yield _check_change(check.change_at_most, column, present, before)


def _check_bound(words: str, values: Sequence[Any], holds: Any) -> Finding:
    beyond = []
    for value in values:
        number = as_number(value)
        if number is None or not holds(number):
            beyond.append(shown_cell(value))
    return Finding(words, not beyond, _examples(beyond, "is not"))


def _check_change(
    most: float, column: str, values: Sequence[Any], before: ItemOutcome | None
) -> Finding:
    words = f"the sum of {column} changes by at most {100 * most:g} %"
    earlier = None if before is None else column_values(before, column)
    if earlier is None:
        return Finding(words, True, "there is no earlier run to compare with")
    old, new = _sum(earlier), _sum(values)
    if old is None or new is None:
        return Finding(words, False, "it holds other things than numbers")
    with exactly():
        met = abs(new - old) <= Decimal(str(most)) * abs(old)
    detail = "" if met else f"it went from {shown_number(old)} to {shown_number(new)}"
    return Finding(words, met, detail)


def _sum(values: Sequence[Any]) -> Decimal | None:
    numbers = [as_number(value) for value in values if value is not None]
    if any(number is None for number in numbers):
        return None
    with exactly():
        return sum((number for number in numbers if number is not None), Decimal(0))


def _examples(values: Sequence[str], says: str) -> str:
    if not values:
        return ""
    shown = ", ".join(value[:60] for value in values[:_EXAMPLES])
    more = f" and {len(values) - _EXAMPLES} more" if len(values) > _EXAMPLES else ""
    return f"{shown}{more} {says}"


def _no_column(words: str, column: str) -> Finding:
    return Finding(words, False, f"there is no column {column}")
