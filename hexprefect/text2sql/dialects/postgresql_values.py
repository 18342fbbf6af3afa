"""Values of PostgreSQL that Python has no exact type for, as texts that say what they are.

psycopg makes 30 days of a month, a float of a JSON number, None of a JSON null, and fails at
`infinity` and at years before 1 and after 9999.
"""

from __future__ import annotations

import datetime
import re
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
    json_value,
    months_and_rest,
)

_INTERVAL = re.compile(
    r"(?:([-+]?\d+) years? ?)?(?:([-+]?\d+) mons? ?)?(?:([-+]?\d+) days? ?)?"
    r"(?:([-+]?)(\d+):(\d+):(\d+)(?:\.(\d{1,6}))?)?"
)
"""As the server writes it while `intervalstyle` is `postgres`, its default."""


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
        text = bytes(data).decode()
        found = _INTERVAL.fullmatch(text)
        if not text or found is None:
            return IntervalText(text)
        years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
        clock = datetime.timedelta(
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            seconds=int(seconds or 0),
            microseconds=int((fraction or "").ljust(6, "0")),
        )
        try:
            rest = datetime.timedelta(days=int(days or 0)) + (-clock if sign == "-" else clock)
        except OverflowError:
            return IntervalText(text)
        return months_and_rest(12 * int(years or 0) + int(months or 0), rest)
