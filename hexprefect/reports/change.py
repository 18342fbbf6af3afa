"""What has changed in a result since an earlier night."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hexprefect.reports.numbers import (
    NUMERIC_TYPES,
    as_number,
    shown_cell,
    shown_difference,
)
from hexprefect.reports.outcome import Change, ItemOutcome

MOST_DETAILS = 12
"""Single changes that are shown."""

Key = tuple[str, ...]
Row = tuple[Any, ...]


def change_since(
    before: ItemOutcome, now: ItemOutcome, *, since: str, compare_by: Sequence[str] = ()
) -> Change | None:
    """Compare two results of one item.

    Args:
        before: of an earlier night.
        now: of this one.
        since: the earlier night.
        compare_by: the columns that say which row is which; by default the columns that are not
            numbers, where they do.

    Returns:
        None when one of them has no rows to compare.
    """
    if not (before.has_rows and now.has_rows):
        return None
    if [name.casefold() for name in before.columns] != [name.casefold() for name in now.columns]:
        return Change(since, f"the columns were {', '.join(before.columns) or 'none'}")
    if before.rows == now.rows:
        return Change(since, "unchanged")
    if len(now.columns) == len(now.rows) == len(before.rows) == 1:
        of_numbers = _are_numbers(before, now)[0]
        return Change(since, _cell_change(before.rows[0][0], now.rows[0][0], of_numbers))
    keyed = _by_key(before, now, compare_by)
    if keyed is None:
        return Change(since, _counts(len(before.rows), len(now.rows)))
    columns = tuple(zip(now.columns, _are_numbers(before, now), strict=True))
    return _rows_change(since, *keyed, columns=columns)


def _are_numbers(before: ItemOutcome, now: ItemOutcome) -> tuple[bool, ...]:
    """Of each column, whether it is reckoned with: digits of a text are a name, such as `007`."""
    kinds = {*NUMERIC_TYPES, "mixed", "null"}
    return tuple({old, new} <= kinds for old, new in zip(before.types, now.types, strict=True))


def _rows_change(
    since: str,
    old: dict[Key, Row],
    new: dict[Key, Row],
    *,
    columns: Sequence[tuple[str, bool]],
) -> Change:
    came = [key for key in new if key not in old]
    went = [key for key in old if key not in new]
    details = [f"new: {_name(key)}" for key in came]
    details += [f"gone: {_name(key)}" for key in went]
    changed = 0
    for key, row in new.items():
        if key not in old or old[key] == row:
            continue
        changed += 1
        details += [
            f"{_name(key)}: {column} {_cell_change(was, is_, of_numbers)}"
            for (column, of_numbers), was, is_ in zip(columns, old[key], row, strict=True)
            if was != is_
        ]
    parts = [
        f"{count} {word}"
        for count, word in ((changed, "changed"), (len(came), "new"), (len(went), "gone"))
        if count
    ]
    summary = f"{', '.join(parts)} of {len(new)} rows" if parts else "the same rows, reordered"
    if len(details) > MOST_DETAILS:
        details = [*details[:MOST_DETAILS], f"and {len(details) - MOST_DETAILS} more"]
    return Change(since, summary, tuple(details))


def _by_key(
    before: ItemOutcome, now: ItemOutcome, compare_by: Sequence[str]
) -> tuple[dict[Key, Row], dict[Key, Row]] | None:
    """Both results by their key; None when no key tells the rows apart in both."""
    folded = [name.casefold() for name in now.columns]
    if compare_by:
        wanted = [name.casefold() for name in compare_by]
        if not set(wanted) <= set(folded):
            return None
        indexes = [folded.index(name) for name in wanted]
    else:
        indexes = [index for index, kind in enumerate(now.types) if kind not in NUMERIC_TYPES]
    old, new = _keyed(before.rows, indexes), _keyed(now.rows, indexes)
    return None if old is None or new is None or not indexes else (old, new)


def _keyed(rows: Sequence[Row], indexes: Sequence[int]) -> dict[Key, Row] | None:
    found = {tuple(shown_cell(row[index]) for index in indexes): row for row in rows}
    return found if len(found) == len(rows) else None


def _cell_change(before: Any, now: Any, of_numbers: bool) -> str:
    old, new = as_number(before), as_number(now)
    if of_numbers and old is not None and new is not None:
        return shown_difference(old, new)
    return f"{shown_cell(before)} → {shown_cell(now)}"


def _counts(before: int, now: int) -> str:
    if before == now:
        return f"other values in {now} row{'s' if now != 1 else ''}"
    return f"{before} → {now} rows"


def _name(key: Key) -> str:
    return " / ".join(part[:60] for part in key)
