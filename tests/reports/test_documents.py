"""What people and programs get: HTML that needs nothing else, markdown, charts, CSV and Parquet."""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
import xml.dom.minidom
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.errors import CallerMistake
from hexprefect.reports.charts import draw
from hexprefect.reports.file import Chart
from hexprefect.reports.html import report_html
from hexprefect.reports.markdown import message_text, report_markdown
from hexprefect.reports.numbers import as_number, shown_cell
from hexprefect.reports.outcome import Change, Finding, ReportOutcome
from hexprefect.reports.results import csv_bytes, parquet_bytes
from hexprefect.reports.sql_layout import format_sql
from hexprefect.text2sql.encoding import JsonValue, TimestampText
from tests.reports.examples import item, report

EVIL = "<script>alert(1)</script> $x^2$ `a` [b](javascript:c) | **d** \N{SNOWMAN}"
KINDS = ["bar", "horizontal_bar", "line", "area", "scatter"]


class Elements(HTMLParser):
    """Every element with its attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def a_partial_report() -> ReportOutcome:
    return report(
        item("status orders", ("open", 4), (EVIL, None), key="a", title=EVIL, question=EVIL),
        item(key="b", title="Broken", state="failed", reason=f"no such table {EVIL}"),
        item("n", (7,), key="c", title="One", state="doubtful",
             findings=(Finding("n ≥ 10", False, "7 is not"),),
             change=Change("2026-11-30", "5 → 7 (+2, +40.0 %)", (EVIL,)), notes=(EVIL,)),
    )  # fmt: skip


def test_the_document_loads_and_runs_nothing() -> None:
    svg = draw(Chart(x="status", y=("orders",)), item("status orders", (EVIL, 1)), format="svg")
    html = report_html(a_partial_report(), charts={"a": svg})
    seen = Elements(html)
    tags = {tag for tag, _ in seen.found}
    assert "script" not in tags
    assert "link" not in tags
    for tag, attributes in seen.found:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "action", "data"):
            if name in attributes:
                assert (tag, name) == ("img", "src")
                assert str(attributes[name]).startswith("data:image/svg+xml;base64,")
    assert "@import" not in html
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_the_document_says_what_failed_first_and_shows_every_item() -> None:
    outcome = a_partial_report()
    text = Elements(report_html(outcome, charts={})).text
    assert "Partial: 1 of 3 items failed: Broken; 1 of 3 items are not as expected: One" in text
    assert text.index("Partial:") < text.index("no such table")
    assert EVIL in text
    assert "Not as expected: n ≥ 10, but 7 is not." in text
    assert "Since 2026-11-30: 5 → 7 (+2, +40.0 %)" in text
    assert "NULL" in text


@pytest.mark.parametrize(
    ("state", "changed", "said"),
    [("failed", {}, "Failed:"), ("answered", {"ended_at": 1_796_000_001.0}, "not ready in time")],
)
def test_the_document_says_how_the_night_went(state: Any, changed: Any, said: str) -> None:
    outcome = report(item("n", (1,), state=state, reason="x"), **changed)
    assert said in Elements(report_html(outcome, charts={})).text
    assert said in report_markdown(outcome)


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_no_value_becomes_markup(value: str) -> None:
    outcome = report(item("v", (value,), (None,), title=value or "t", question=value))
    plain = report(item("v", ("v",), (None,), title="t", question=value and "v"))
    with_value, without = (Elements(report_html(one, charts={})) for one in (outcome, plain))
    assert [tag for tag, _ in with_value.found] == [tag for tag, _ in without.found]


def test_markdown_values_are_escaped_and_sql_stays_in_its_fence() -> None:
    outcome = report(item("v", (EVIL,), sql="SELECT '```\n# x'"))
    markdown = report_markdown(outcome)
    assert "<script>" not in markdown
    assert not re.search(r"(?<!\\)\]\(", markdown)
    assert "````sql\n" in markdown


def test_markdown_shows_entities_and_tildes_as_they_are() -> None:
    markdown = report_markdown(report(item("v", ("&lt;b&gt; ~~gone~~",))))
    assert r"\&lt;b\&gt; \~\~gone\~\~" in markdown


@pytest.mark.parametrize(
    "value", ["<!channel>", "!here>", "<@U6TTX1F9R>", "<https://evil.example|the report>"]
)
def test_no_value_calls_or_links_anybody_in_a_chat(value: str) -> None:
    failed = item("v", state="failed", reason=value, rows=())
    unmet = item("v", (value,), title=value, findings=(Finding(value, False, value),),
                 change=Change("2026-11-30", value))  # fmt: skip
    text = message_text(report(failed, unmet, title=value), where="here")
    assert not set("<>") & set(text)
    assert "@everyone" not in message_text(report(item("v", ("@everyone",))), where="here")


def test_a_value_is_one_short_line_of_a_message() -> None:
    """Another line would look like another item, and a chat refuses a message without an end."""
    text = message_text(report(item("v", ("1\n- Revenue: 7\n" + "x" * 100_000,))), where="here")
    assert len(text) < 1000
    assert [line[:14] for line in text.splitlines()] == [
        "The item was a", "- Item: 1 - Re", "", "The report: he",
    ]  # fmt: skip


def test_a_message_names_the_values_the_changes_and_the_place() -> None:
    text = message_text(a_partial_report(), where="/reports/x.html")
    assert "- Broken: failed. no such table" in text
    assert "- One: 7; since 2026-11-30: 5 → 7 (+2, +40.0 %); expected that n ≥ 10" in text
    assert text.endswith("The report: /reports/x.html")


# -- charts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_chart_is_drawn_the_same_each_time(kind: Any) -> None:
    rows = item("month a b", ("2026-01", 1, Decimal("2.5")), (EVIL, 3, None), (None, -1, 2))
    chart = Chart(kind=kind, x="month", y=("a", "B"), title=EVIL, stacked=kind == "bar")
    svg = draw(chart, rows, format="svg")
    assert svg == draw(chart, rows, format="svg")
    assert b"<svg" in svg
    assert b"<script" not in svg


def test_a_picture_for_messages_is_a_png() -> None:
    assert draw(Chart(x="k", y=("v",)), item("k v", ("a", 1))).startswith(b"\x89PNG")


def test_other_rows_give_another_chart() -> None:
    chart = Chart(x="k", y=("v",))
    assert draw(chart, item("k v", ("a", 1))) != draw(chart, item("k v", ("a", 2)))


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [("k w", ("a", 1), "'v'"), ("k v", ("a", "many"), "no number"), ("k v", None, "no rows")],
)
def test_a_chart_that_cannot_be_drawn_says_why(columns: str, row: Any, said: str) -> None:
    with pytest.raises(CallerMistake, match=said):
        draw(Chart(x="k", y=("v",)), item(columns, *([row] if row else [])))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [10**400, "1e400", 1.7e308])
def test_numbers_without_an_end_are_a_mistake_and_no_crash(kind: Any, value: Any) -> None:
    rows = item("k v", ("a", value), ("b", -1.7e308), ("c", value))
    with pytest.raises(CallerMistake, match="too large a number"):
        draw(Chart(kind=kind, x="k", y=("v",)), rows)


def test_a_browser_can_read_a_chart_of_any_text() -> None:
    evil = "".join(map(chr, range(32))) + "\ufffe--><x>"
    rows = item("k v", (evil[:16], 1), (evil[16:], 2), ("\ud83d", 3))
    rows = replace(rows, columns=(evil, evil + "n"))
    for kind in ("bar", "scatter"):
        chart = Chart(kind=kind, x=evil, y=(evil + "n",), title=evil)
        xml.dom.minidom.parseString(draw(chart, rows, format="svg"))


# -- files --------------------------------------------------------------------------------------


def test_csv_is_read_back_by_a_program() -> None:
    rows = item("a b", ('x, "y"\nz', 1), (None, Decimal("1.10")))
    read = list(csv.reader(io.StringIO(csv_bytes(rows).decode(), newline="")))
    assert read == [["a", "b"], ['x, "y"\nz', "1"], ["", "1.10"]]


@pytest.mark.parametrize("text", ["=1+1", "@x", "+x", "-x", "\tx", "=cmd|'/C calc'!A0"])
def test_a_spreadsheet_runs_nothing_of_a_csv(text: str) -> None:
    read = list(csv.reader(io.StringIO(csv_bytes(item("a", (text,))).decode(), newline="")))
    assert read[1] == [f"'{text}"]


def test_numbers_stay_numbers_in_csv() -> None:
    assert b"\r\n-5\r\n-1.10\r\n" in csv_bytes(item("a", ("-5",), ("-1.10",)))


def test_parquet_keeps_every_type_exactly() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    when = datetime.datetime(2026, 12, 1, 5, 30, tzinfo=datetime.UTC)
    values = (True, 2**62, 1.5, Decimal("1.10"), "=x", when.date(), when, b"\x00\xff", None)
    rows = item("t i n d x day at raw nothing", values, (None,) * len(values))
    table = pq.read_table(io.BytesIO(parquet_bytes(rows)))
    assert table.to_pylist() == [
        dict(zip(rows.columns, values, strict=True)),
        dict.fromkeys(rows.columns),
    ]


def test_parquet_takes_what_has_no_type_there_as_text() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    rows = item("i i m", (2**70, 1, "a"), (1, 2, 1.5))
    table = pq.read_table(io.BytesIO(parquet_bytes(rows)))
    assert table.column_names == ["i", "i (2)", "m"]
    assert table.to_pylist()[0] == {"i": str(2**70), "i (2)": 1, "m": "a"}


def test_parquet_drops_no_digit_and_no_zone() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    nanoseconds = TimestampText("2024-02-29T12:00:00.123456789")
    at_two = datetime.time(12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    rows = item("n ns tz", (2**53 + 1, nanoseconds, at_two), (0.5, None, None))
    assert pq.read_table(io.BytesIO(parquet_bytes(rows))).to_pylist()[0] == {
        "n": str(2**53 + 1),
        "ns": "2024-02-29T12:00:00.123456789",
        "tz": "12:00:00+02:00",
    }


LOOKS_WRAPPED = {"type": "date", "value": "2024-02-29"}


def test_a_json_column_is_json_in_every_file() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    cells: list[Any] = [{"a": 1}, "x", "1", 1, LOOKS_WRAPPED]
    rows = item("doc", *((JsonValue(cell),) for cell in cells), (JsonValue(None),), (None,))
    found = pq.read_table(io.BytesIO(parquet_bytes(rows))).column("doc").to_pylist()
    assert [json.loads(text) for text in found[:-1]] == [*cells, None]
    assert found[-1] is None
    assert json.dumps(LOOKS_WRAPPED).replace('"', '""').encode() in csv_bytes(rows)


def test_what_only_looks_like_a_wrapped_cell_is_shown_whole() -> None:
    assert shown_cell({"type": "colour", "value": "red"}) == "{'type': 'colour', 'value': 'red'}"
    assert shown_cell({"type": "bytes", "value": "AP8="}) == "AP8="


def test_an_identifier_that_reads_as_a_power_is_no_number() -> None:
    assert as_number("7e999999") is None
    assert as_number("7e3") == 7000


def test_parquet_takes_as_text_what_its_types_would_change() -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    zone = datetime.timezone(datetime.timedelta(hours=2))
    noon, midnight = datetime.time(12, tzinfo=zone), datetime.datetime(2026, 12, 1)
    rows = item(
        "time at n text",
        (noon, midnight, 2**60 + 1, "half \ud83d"),
        (noon, midnight.replace(tzinfo=zone), 1.5, "\ud83d"),
    )
    table = pq.read_table(io.BytesIO(parquet_bytes(rows)))
    assert table.to_pylist() == [
        {"time": "12:00:00+02:00", "at": "2026-12-01T00:00:00", "n": str(2**60 + 1),
         "text": "half \N{REPLACEMENT CHARACTER}"},
        {"time": "12:00:00+02:00", "at": "2026-12-01T00:00:00+02:00", "n": "1.5",
          "text": "\N{REPLACEMENT CHARACTER}"},
    ]  # fmt: skip


# -- SQL for people -----------------------------------------------------------------------------


def test_sql_is_laid_out_and_says_the_same() -> None:
    laid_out = format_sql(
        "SELECT a, COUNT(*) FROM t WHERE x = 'it''s' GROUP BY a", dialect="sqlite"
    )
    assert laid_out.count("\n") > 3
    assert re.sub(r"\s+", " ", laid_out) == (
        "SELECT a, COUNT(*) FROM t WHERE x = 'it''s' GROUP BY a"
    )


@pytest.mark.parametrize("sql", ["no SQL '", "SELECT a::int FROM t", "", "x" * 30_000, "(" * 5000])
def test_sql_that_the_layout_would_change_stays_as_it_is(sql: str) -> None:
    assert format_sql(sql, dialect="sqlite") == sql
