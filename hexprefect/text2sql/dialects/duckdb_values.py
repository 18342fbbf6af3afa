"""Values of DuckDB that Python has no exact type for, asked for in a way that loses nothing.

The driver makes 30 days of a month, 9999-12-31 of `infinity`, a plain text of what Python has no
date or time for, and leaves out nanoseconds. So a statement with such columns is run as the source
of another that reads them as texts, or says which of them are infinite.
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
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._told = [index for index, kind in enumerate(kinds) if kind in _MAY_BE_INFINITE]
        """Columns of which a further column says whether they are infinite, in its order."""

    def asked_of(self, sql: str) -> str | None:
        """The statement that reads one exactly; None where that one does so itself."""
        names = [f"c{index}" for index in range(len(self._kinds))]
        selected = [_asked(name, kind) for name, kind in zip(names, self._kinds, strict=True)]
        if selected == names and not self._told:
            return None
        selected += [f"isinf({names[index]})" for index in self._told]
        source = sql.rstrip().rstrip(";")
        # On a line of its own: a comment may come before it.
        return f"SELECT {', '.join(selected)} FROM ({source}\n) AS answer ({', '.join(names)})"

    def read(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The row of the statement from what was asked for."""
        width = len(self._kinds)
        infinite = {
            index for index, is_infinite in zip(self._told, row[width:], strict=True) if is_infinite
        }
        return tuple(
            _infinity(value, kind) if index in infinite else _exact(value, kind)
            for index, (value, kind) in enumerate(zip(row[:width], self._kinds, strict=True))
        )


def _asked(name: str, kind: str) -> str:
    if kind in _READ_AS_TEXT:
        return f"CAST({name} AS VARCHAR)"
    return f"to_json({name})" if _holds_intervals(kind) else name


def _holds_intervals(kind: str) -> bool:
    """Whether it is a list, a structure or a map with intervals in it."""
    return "INTERVAL" in kind and kind != "INTERVAL" and not kind.startswith("ENUM(")


def _infinity(value: datetime.date, kind: str) -> str:
    return _TEXTS[kind]("infinity" if value.year > 1 else "-infinity")


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
