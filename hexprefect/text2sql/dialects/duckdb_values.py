"""Values of DuckDB asked for so that nothing of them is lost, and no more of them than is shown.

The driver makes 30 days of a month, 9999-12-31 of `infinity`, a plain text of what Python has no
date or time for, and leaves out nanoseconds; and it makes a copy of a value of any size. So a
statement with such columns is run as the source of another, which reads them as texts, says which
of them are infinite, cuts long ones and leaves out lists that no result can hold.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

from hexprefect.text2sql.encoding import (
    DateText,
    TimestampText,
    TimeText,
    interval_of,
    json_value,
)
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import TooLarge

_DIGITS_OF_A_SECOND = 6
"""That Python's times hold."""
_READ_AS_TEXT = frozenset({"INTERVAL", "TIMESTAMP_NS", "TIME_NS"})
_TEXTS: dict[str, Callable[[str], str]] = {
    "DATE": DateText,
    "TIME": TimeText,
    "TIME WITH TIME ZONE": TimeText,
    "TIME_NS": TimeText,
    "TIMESTAMP": TimestampText,
    "TIMESTAMP WITH TIME ZONE": TimestampText,
    "TIMESTAMP_S": TimestampText,
    "TIMESTAMP_MS": TimestampText,
    "TIMESTAMP_NS": TimestampText,
}
_MAY_BE_INFINITE = frozenset(
    {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP_S", "TIMESTAMP_MS"}
)


class ExactColumns:
    """How the columns of one result are asked for and read.

    Args:
        kinds: the columns' types as DuckDB writes them.
        limits: how much of a value is shown, and how much a whole result may hold.
    """

    def __init__(self, kinds: Sequence[str], limits: Limits) -> None:
        self._kinds = tuple(kinds)
        self._limits = limits
        self._told = [
            index
            for index, kind in enumerate(kinds)
            if kind in _MAY_BE_INFINITE or _is_collection(kind)
        ]
        """Columns of which a further one says that the value is not what it seems, in its order."""

    def asked_of(self, sql: str) -> str | None:
        """The statement that reads one exactly; None where that one does so itself."""
        names = [f"c{index}" for index in range(len(self._kinds))]
        columns = list(zip(names, self._kinds, strict=True))
        selected = [self._asked(name, kind) for name, kind in columns]
        if selected == names and not self._told:
            return None
        selected += [self._asked_whether(*columns[index]) for index in self._told]
        source = sql.rstrip().rstrip(";")
        # On a line of its own: a comment may come before it.
        return f"SELECT {', '.join(selected)} FROM ({source}\n) AS answer ({', '.join(names)})"

    def read(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The row of the statement from what was asked for."""
        width = len(self._kinds)
        odd = {index for index, is_odd in zip(self._told, row[width:], strict=True) if is_odd}
        return tuple(
            self._odd(value, kind) if index in odd else _exact(value, kind)
            for index, (value, kind) in enumerate(zip(row[:width], self._kinds, strict=True))
        )

    def _asked(self, name: str, kind: str) -> str:
        # One character more than is shown, by which a value that was cut is told.
        longest = self._limits.max_value_characters + 1
        if kind in _READ_AS_TEXT:
            return f"CAST({name} AS VARCHAR)"
        if kind == "VARCHAR":
            return f"left({name}, {longest})"
        if kind == "BLOB":
            return f"{name}[1:{longest}]"
        exact = f"to_json({name})" if _holds_intervals(kind) else name
        if _is_collection(kind):
            return f"CASE WHEN {self._asked_whether(name, kind)} THEN NULL ELSE {exact} END"
        return exact

    def _asked_whether(self, name: str, kind: str) -> str:
        if not _is_collection(kind):
            return f"isinf({name})"
        count = "cardinality" if kind.startswith("MAP(") else "len"
        # Of an element at least its comma, its space and one character are counted.
        return f"{count}({name}) > {self._limits.max_bytes // 3}"

    def _odd(self, value: Any, kind: str) -> Any:
        if _is_collection(kind):
            return TooLarge(self._limits.max_bytes + 1)
        return _TEXTS[kind]("infinity" if value.year > 1 else "-infinity")


def _is_collection(kind: str) -> bool:
    return kind.endswith("[]") or kind.startswith("MAP(")


def _holds_intervals(kind: str) -> bool:
    """Whether it is a list, a structure or a map with intervals in it."""
    return "INTERVAL" in kind and kind != "INTERVAL" and not kind.startswith("ENUM(")


def _exact(value: Any, kind: str) -> Any:
    if not isinstance(value, str):
        return value
    if kind == "JSON" or _holds_intervals(kind):
        return json_value(value)
    if kind == "INTERVAL":
        return interval_of(value)
    if kind in _READ_AS_TEXT:
        return _with_nanoseconds(value, kind)
    return _TEXTS[kind](value) if kind in _TEXTS else value


def _with_nanoseconds(text: str, kind: str) -> Any:
    """A Python value where it loses nothing, else ISO 8601 with all digits."""
    _, _, fraction = text.partition(".")
    if len(fraction) <= _DIGITS_OF_A_SECOND:
        read = datetime.time if kind == "TIME_NS" else datetime.datetime
        try:
            return read.fromisoformat(text)
        except ValueError:
            pass
    return _TEXTS[kind](text.replace(" ", "T", 1))
