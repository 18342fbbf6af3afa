"""Values of PostgreSQL that Python has no exact type for, as texts that say what they are.

psycopg makes 30 days of a month, a float of a JSON number, None of a JSON null, and fails at
`infinity` and at years before 1 and after 9999.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types import datetime as theirs
from psycopg.types.json import set_json_loads

from hexprefect.text2sql.encoding import (
    DateText,
    IntervalText,
    TimestampText,
    TimeText,
    interval_of,
    json_value,
)


def read_exactly(connection: psycopg.Connection[Any]) -> None:
    """Let a connection give every value as exactly as it was sent."""
    for name, base, kind in (
        ("date", theirs.DateLoader, DateText),
        ("time", theirs.TimeLoader, TimeText),
        ("timetz", theirs.TimetzLoader, TimeText),
        ("timestamp", theirs.TimestampLoader, TimestampText),
        ("timestamptz", theirs.TimestamptzLoader, TimestampText),
    ):
        connection.adapters.register_loader(name, _or_text(base, kind))
    connection.adapters.register_loader("interval", _IntervalLoader)
    set_json_loads(json_value, connection)


def _or_text(base: type[Loader], kind: Callable[[str], object]) -> type[Loader]:
    """A loader that gives the server's own text where Python has no such value."""

    class ExactLoader(base):  # type: ignore[valid-type, misc]
        def load(self, data: Buffer) -> Any:
            try:
                return super().load(data)
            except (psycopg.DataError, ValueError, OverflowError):
                return kind(bytes(data).decode())

    return ExactLoader


class _IntervalLoader(Loader):
    def load(self, data: Buffer) -> datetime.timedelta | IntervalText:
        return interval_of(bytes(data).decode())
