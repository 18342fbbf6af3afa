"""An item's rows as a file: CSV for people, Parquet for programs."""

from __future__ import annotations

import base64
import csv
import datetime
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from hexprefect.errors import CallerMistake
from hexprefect.reports.numbers import plain_cell
from hexprefect.reports.outcome import ItemOutcome

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_bytes(outcome: ItemOutcome) -> bytes:
    """CSV as RFC 4180 has it, UTF-8, NULL as nothing.

    A text that a spreadsheet would run as a formula gets a `'` before it; Parquet is exact.
    """
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\r\n")
    writer.writerow([harmless(column) for column in outcome.columns])
    for row in outcome.rows:
        cells = zip(row, outcome.types, strict=True)
        writer.writerow([_csv_cell(cell, kind) for cell, kind in cells])
    return written.getvalue().encode("utf-8", "replace")


def parquet_bytes(outcome: ItemOutcome) -> bytes:
    """Parquet with the columns' own types; what has none there is text.

    Raises:
        CallerMistake: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-untyped,unused-ignore]
    except ImportError as missing:
        raise CallerMistake(
            "Results as Parquet need the package pyarrow.",
            remedy="Install hexprefect[parquet], or ask for `results: [csv]`.",
        ) from missing
    names = _distinct(tuple(map(_writable, outcome.columns)))
    arrays = []
    for index, kind in enumerate(outcome.types):
        cells = [row[index] for row in outcome.rows]
        try:
            values = [_typed(cell, kind) for cell in cells]
            _refuse_two_clocks(values)
            arrays.append(pa.array(values, _arrow_type(pa, kind)))
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, ArithmeticError):
            # For example an integer beyond 64 bits among others, or a time of day with a zone.
            arrays.append(pa.array([_text(cell, kind) for cell in cells], pa.string()))
    written = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=names), written)
    return written.getvalue()


def _arrow_type(pa: Any, kind: str) -> Any:
    # A decimal's precision and a timestamp's zone follow from the values.
    match kind:
        case "boolean":
            return pa.bool_()
        case "integer":
            return pa.int64()
        case "number":
            return pa.float64()
        case "date":
            return pa.date32()
        case "time":
            return pa.time64("us")
        case "bytes":
            return pa.binary()
        case "decimal" | "timestamp":
            return None
    return pa.string()


def _typed(cell: Any, kind: str) -> Any:
    if cell is None:
        return None
    convert = _FROM_CELL.get(kind)
    if convert is not None:
        return convert(cell)
    if kind == "boolean" and isinstance(cell, bool):
        return cell
    return cell if kind == "integer" else _text(cell, kind)


def _number(cell: Any) -> float:
    number = float(cell)
    if isinstance(cell, int) and number != cell:
        raise ValueError("no float is this integer")
    return number


def _moment(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def exactly(text: str) -> Any:
        moment = read(text)
        # Nanoseconds are dropped in reading, the zone of a time in writing.
        if moment.isoformat() != text or (
            isinstance(moment, datetime.time) and moment.tzinfo is not None
        ):
            raise ValueError("Parquet's type would not hold all of it")
        return moment

    return exactly


def _refuse_two_clocks(values: list[Any]) -> None:
    """Times with and without a zone in one column: one kind would become the other."""
    zoned = {value.tzinfo is None for value in values if isinstance(value, datetime.datetime)}
    if len(zoned) > 1:
        raise ValueError("some have a zone and some have none")


def _json(cell: Any) -> str:
    """As a program reads it: a text keeps its quotes, and a null is no missing value."""
    return json.dumps(plain_cell(cell, "json"), ensure_ascii=False)


_FROM_CELL: dict[str, Callable[[Any], Any]] = {
    "number": _number,
    "decimal": Decimal,
    "date": _moment(datetime.date.fromisoformat),
    "timestamp": _moment(datetime.datetime.fromisoformat),
    "time": _moment(datetime.time.fromisoformat),
    "bytes": base64.b64decode,
    "json": _json,
}


def _text(cell: Any, kind: str) -> str | None:
    cell = plain_cell(cell, kind)
    if cell is None:
        return None
    return _writable(cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False))


def _writable(text: str) -> str:
    """Without halves of characters, which UTF-8 does not have."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _csv_cell(cell: Any, kind: str) -> Any:
    cell = plain_cell(cell, kind)
    if cell is None:
        return ""
    if isinstance(cell, str):
        return harmless(cell)
    return cell if isinstance(cell, int | float) else _text(cell, kind)


def harmless(text: str) -> str:
    """A text in a CSV file that no spreadsheet runs as a formula: such a one gets a `'` before it.

    Numbers stay numbers, also those with a sign.
    """
    if not text.startswith(_FORMULA):
        return text
    try:
        Decimal(text)
    except ArithmeticError:
        return f"'{text}"
    return text


def _distinct(names: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for name in names:
        shown, number = name, 2
        while shown in found:
            shown, number = f"{name} ({number})", number + 1
        found.append(shown)
    return found
