"""Results keep their exact values and types, and always fit JSON."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.text2sql.encoding import (
    DateText,
    IntervalText,
    JsonValue,
    encode_rows,
    encode_value,
    json_value,
    months_and_rest,
)

UTC = datetime.UTC
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(),
    st.dates(),
    st.datetimes(timezones=st.just(UTC) | st.none()),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)


@pytest.mark.parametrize(
    ("value", "kind", "encoded"),
    [
        (1, "integer", 1),
        (2**70, "integer", 2**70),
        (1.5, "number", 1.5),
        (float("nan"), "number", "NaN"),
        (float("inf"), "number", "Infinity"),
        (float("-inf"), "number", "-Infinity"),
        (True, "boolean", True),
        ("x", "text", "x"),
        (decimal.Decimal("1.10"), "decimal", "1.10"),
        (decimal.Decimal("NaN"), "decimal", "NaN"),
        (datetime.date(2024, 2, 29), "date", "2024-02-29"),
        (
            datetime.datetime(2024, 2, 29, 12, tzinfo=UTC),
            "timestamp",
            "2024-02-29T12:00:00+00:00",
        ),
        (datetime.time(1, 2, 3), "time", "01:02:03"),
        (datetime.timedelta(days=1, milliseconds=500), "interval", "P1DT0.5S"),
        (datetime.timedelta(seconds=-90), "interval", "-P0DT90S"),
        (b"\x00\xff", "bytes", "AP8="),
        (uuid.UUID(int=1), "uuid", "00000000-0000-0000-0000-000000000001"),
        ({"a": [decimal.Decimal("1.0")]}, "json", {"a": ["1.0"]}),
        (DateText("infinity"), "date", "infinity"),
        (IntervalText("P1M"), "interval", "P1M"),
        (JsonValue([1, None]), "json", [1, None]),
        (JsonValue("x"), "json", "x"),
        (JsonValue(None), "json", {"type": "json", "value": None}),
        (None, "null", None),
    ],
)
def test_each_type_has_one_encoding(value: object, kind: str, encoded: Any) -> None:
    assert encode_rows([(value,)], columns=1) == ((kind,), ((encoded,),))


def test_whole_and_broken_numbers_make_a_number_column() -> None:
    assert encode_rows([(1,), (2.5,), (None,)], columns=1)[0] == ("number",)


def test_in_a_mixed_column_bytes_cannot_be_taken_for_text() -> None:
    types, rows = encode_rows([("AP8=",), (b"\x00\xff",), (3,), (None,)], columns=1)
    assert types == ("mixed",)
    assert rows == (("AP8=",), ({"type": "bytes", "value": "AP8="},), (3,), (None,))


@given(st.lists(st.tuples(scalars, scalars), max_size=6))
def test_every_result_is_json(rows: list[tuple[object, object]]) -> None:
    types, encoded = encode_rows(rows, columns=2)
    assert len(types) == 2
    json.dumps(encoded, allow_nan=False)


@given(st.decimals(allow_nan=False))
def test_a_decimal_loses_nothing(value: decimal.Decimal) -> None:
    assert decimal.Decimal(encode_value(value)) == value


@given(st.binary())
def test_bytes_lose_nothing(value: bytes) -> None:
    assert base64.b64decode(encode_value(value)) == value


def test_an_empty_result_keeps_its_columns() -> None:
    assert encode_rows([], columns=3) == (("null",) * 3, ())


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("1.10", 1.1),
        ("12345678901234567890.12", "12345678901234567890.12"),
        ("[0.1, 1e400, 2, true]", [0.1, "1E+400", 2, True]),
        ("[1e999999999999999999999]", ["1e999999999999999999999"]),
        ("9" * 5_000, "9" * 5_000),
        ('{"a": {"b": null}}', {"a": {"b": None}}),
    ],
)
def test_no_digit_of_a_json_number_is_lost(text: str, encoded: Any) -> None:
    assert encode_value(json_value(text)) == encoded


def test_half_a_character_stops_no_reader() -> None:
    encoded = encode_value(json_value('{"a\\ud800": "\\udfffb", "whole": "\\ud83d\\ude00"}'))
    assert encoded == {"a\N{REPLACEMENT CHARACTER}": "\N{REPLACEMENT CHARACTER}b", "whole": "😀"}
    assert json.dumps(encoded, ensure_ascii=False).encode()


def test_keys_are_encoded_as_values_are() -> None:
    at = datetime.datetime(2024, 2, 29, 12)
    assert encode_value({at: 1, b"\xff": 2, 3: 4}) == {"2024-02-29T12:00:00": 1, "/w==": 2, "3": 4}


@pytest.mark.parametrize(
    ("months", "rest", "text"),
    [
        (0, datetime.timedelta(days=30), "P30DT0S"),
        (1, datetime.timedelta(0), "P1M"),
        (-13, datetime.timedelta(0), "-P13M"),
        (1, datetime.timedelta(days=2, seconds=3), "P1M2DT3S"),
        (-1, -datetime.timedelta(days=2, seconds=3), "-P1M2DT3S"),
        (1, -datetime.timedelta(days=2, seconds=3), "P1M-2DT-3S"),
    ],
)
def test_a_month_is_not_thirty_days(months: int, rest: datetime.timedelta, text: str) -> None:
    assert encode_rows([(months_and_rest(months, rest),)], columns=1) == (("interval",), ((text,),))


@pytest.mark.parametrize("make", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_what_no_reader_could_follow_is_not_encoded(make: Any) -> None:
    value: Any = 1
    for _ in range(500):
        value = make(value)
    with pytest.raises(RecursionError):
        encode_rows([(JsonValue(value),)], columns=1)
