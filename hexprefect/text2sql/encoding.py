"""Exact, typed, JSON-safe values of a result.

A cell keeps its JSON type where JSON has one. Where it has none, the cell is text and the column's
type says what the text means: a `decimal` is `"1.10"`, never the float 1.1; a `timestamp` is
ISO 8601 with its zone if it had one; `bytes` are base64. A `number` that JSON cannot hold is one
of the texts `NaN`, `Infinity` and `-Infinity`. In a `mixed` column, which SQLite allows, such a
cell is an object `{"type": …, "value": …}`, so that it cannot be taken for a text.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any

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


def encode_value(value: object) -> Any:
    """One value as JSON can hold it, without its type.

    Returns:
        None, bool, int, finite float, str, or (for a JSON or array value) lists and dicts of them.
    """
    match value:
        case None | bool() | int() | str():
            return value
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
            return {str(key): encode_value(item) for key, item in value.items()}
        case list() | tuple():
            return [encode_value(item) for item in value]
        case _:
            return str(value)


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
    plain = isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )
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
