"""Exact, typed, JSON-safe values of a result.

A cell keeps its JSON type where JSON has one. Where it has none, the cell is text and the column's
type says what the text means: a `decimal` is `"1.10"`, never the float 1.1; a `timestamp` is
ISO 8601 with its zone if it had one; `bytes` are base64. A `number` that JSON cannot hold is one
of the texts `NaN`, `Infinity` and `-Infinity`. In a `mixed` column, which SQLite allows, such a
cell is an object `{"type": …, "value": …}`, so that it cannot be taken for a text. So is a JSON
null, which is a value and no NULL; a number within JSON that no float holds exactly is text.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DEEPEST = 200
"""Lists and objects within each other; what reads an answer must not fail at it."""
_LONGEST_INTEGER = 4_000
"""Digits of an integer that Python, and so a JSON of it, will read and write."""
_INTERVAL = re.compile(
    r"(?:([-+]?\d+) years? ?)?(?:([-+]?\d+) mon(?:th)?s? ?)?(?:([-+]?\d+) days? ?)?"
    r"(?:([-+]?)(\d+):(\d+):(\d+)(?:\.(\d{1,6}))?)?"
)
"""As PostgreSQL writes it while `intervalstyle` is `postgres`, its default, and DuckDB always."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class DateText(str):
    """A date that Python has none for, as the database writes it: `infinity`, a year before 1."""


class TimeText(str):
    """The same for a time, such as `24:00:00`."""


class TimestampText(str):
    """The same for a timestamp."""


class IntervalText(str):
    """An interval of months, in ISO 8601, or one that is unlimited."""


@dataclass(frozen=True, slots=True)
class JsonValue:
    """What a JSON text says; a null within it is no NULL."""

    value: Any


type_names: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    decimal.Decimal: "decimal",
    datetime.datetime: "timestamp",
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "interval",
    DateText: "date",
    TimeText: "time",
    TimestampText: "timestamp",
    IntervalText: "interval",
    JsonValue: "json",
    bytes: "bytes",
    bytearray: "bytes",
    memoryview: "bytes",
    uuid.UUID: "uuid",
    dict: "json",
    list: "json",
    tuple: "json",
}


def type_name(value: object) -> str:
    """Name of a value's type: `integer`, `decimal`, `timestamp` …; `other` where none fits."""
    return type_names.get(type(value), "other")


def json_value(text: str | bytes) -> JsonValue:
    """Read a JSON text without losing a digit.

    Raises:
        ValueError: it is none.
        RecursionError: it is nested too deeply.
    """
    return JsonValue(json.loads(text, parse_float=_exact_number, parse_int=_exact_integer))


def _exact_number(text: str) -> float | decimal.Decimal | str:
    try:
        exact = decimal.Decimal(text)
    except decimal.InvalidOperation:
        # An exponent beyond those of decimals: the text itself is all that says it.
        return text
    number = float(text)
    return number if decimal.Decimal(repr(number)) == exact else exact


def _exact_integer(text: str) -> int | decimal.Decimal:
    return int(text) if len(text) <= _LONGEST_INTEGER else decimal.Decimal(text)


def interval_of(text: str) -> datetime.timedelta | IntervalText:
    """An interval as PostgreSQL and DuckDB write it; one beyond their numbers stays a text."""
    found = _INTERVAL.fullmatch(text)
    if not text or found is None:
        return IntervalText(text)
    years, months, days, sign, hours, minutes, seconds, fraction = found.groups()
    try:
        clock = datetime.timedelta(
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            seconds=int(seconds or 0),
            microseconds=int((fraction or "").ljust(6, "0")),
        )
        rest = datetime.timedelta(days=int(days or 0)) + (-clock if sign == "-" else clock)
    except OverflowError:
        return IntervalText(text)
    return months_and_rest(12 * int(years or 0) + int(months or 0), rest)


def months_and_rest(months: int, rest: datetime.timedelta) -> datetime.timedelta | IntervalText:
    """An interval of which no month is taken for 30 days; without months a plain duration."""
    if not months:
        return rest
    zero = datetime.timedelta(0)
    if not rest:
        return IntervalText(f"{'-' if months < 0 else ''}P{abs(months)}M")
    if (months < 0) == (rest < zero):
        sign, magnitude = ("-", -rest) if months < 0 else ("", rest)
        return IntervalText(f"{sign}P{abs(months)}M{_iso_duration(magnitude)[1:]}")
    # The parts point in different directions: each has a sign of its own.
    days, clock = _iso_duration(abs(rest))[1:].split("T")
    sign = "-" if rest < zero else ""
    return IntervalText(f"P{months}M{sign}{days}T{sign}{clock}")


def encode_value(value: object, *, depth: int = 0) -> Any:
    """One value as JSON can hold it, without its type.

    Returns:
        None, bool, int, finite float, str, or (for a JSON or array value) lists and dicts of them.

    Raises:
        RecursionError: lists or objects are nested more than 200 deep.
    """
    if depth > _DEEPEST:
        raise RecursionError(f"a value is nested more than {_DEEPEST} deep")
    match value:
        case None | bool() | int():
            return value
        case str():
            return _unicode(value)
        case JsonValue(value=None) if depth == 0:
            return {"type": "json", "value": None}
        case JsonValue():
            return encode_value(value.value, depth=depth)
        case float():
            return value if math.isfinite(value) else _name_of_float(value)
        case decimal.Decimal():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return _iso_duration(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode("ascii")
        case dict():
            return {
                str(encode_value(key, depth=depth + 1)): encode_value(item, depth=depth + 1)
                for key, item in value.items()
            }
        case list() | tuple():
            return [encode_value(item, depth=depth + 1) for item in value]
        case _:
            return _unicode(str(value))


def _unicode(text: str) -> str:
    """A text that UTF-8 can hold: half a character, which a JSON may name, becomes U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def encode_rows(
    rows: Sequence[Sequence[object]], *, columns: int
) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Encode a whole result.

    Args:
        rows: the driver's values, each row `columns` long.
        columns: how many columns the result has, also when it has no row.

    Returns:
        The columns' types (`null` for a column without any value, `mixed` for one with several
        types) and the encoded rows.
    """
    types = tuple(_column_type([row[index] for row in rows]) for index in range(columns))
    encoded = tuple(
        tuple(_encode_cell(value, kind) for value, kind in zip(row, types, strict=True))
        for row in rows
    )
    return types, encoded


def _column_type(values: Sequence[object]) -> str:
    found = {type_name(value) for value in values if value is not None}
    if not found:
        return "null"
    if found == {"integer", "number"}:
        return "number"
    return found.pop() if len(found) == 1 else "mixed"


def _encode_cell(value: object, column_type: str) -> Any:
    encoded = encode_value(value)
    if column_type != "mixed" or value is None:
        return encoded
    plain = type(value) in (bool, int, str) or (isinstance(value, float) and math.isfinite(value))
    return encoded if plain else {"type": type_name(value), "value": encoded}


def _name_of_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _iso_duration(value: datetime.timedelta) -> str:
    """ISO 8601 duration in days and seconds, exact to the microsecond, for example `P1DT0.5S`."""
    sign = "-" if value < datetime.timedelta(0) else ""
    magnitude = abs(value)
    seconds = decimal.Decimal(magnitude.seconds) + decimal.Decimal(magnitude.microseconds).scaleb(
        -6
    )
    return f"{sign}P{magnitude.days}DT{seconds.normalize():f}S"
