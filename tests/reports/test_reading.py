"""A report file says what is wrong with it: the line, the place, and the way out."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexprefect.reports import ReportMistake, read_report

SHIPPED = Path(__file__).parents[2] / "flows" / "reports"

WHOLE = """\
title: The shop
database: demo
timezone: Europe/Berlin
ready_by: "06:00"
parameters:
  since: "{{ days_ago(30) }}"
recipients:
  - block: slack-webhook/shop-team
  - {block: email-server-credentials/office, to: office@example.org}
results: [csv, parquet]
items:
  - title: Orders by status
    sql: SELECT status, COUNT(*) AS orders FROM "order" WHERE day >= {{ since }} GROUP BY status
    expect:
      columns: [status, orders]
      types: {orders: integer}
      rows: {min: 1, max: 4}
      checks:
        - {column: orders, at_least: 0}
    chart: {kind: bar, x: status, y: orders}
    compare_by: status
  - title: Customers
    question: How many customers were there on {{ yesterday }}?
    expect: {rows: 1}
"""


@pytest.fixture
def write(tmp_path: Path):
    def write_(text: str) -> Path:
        path = tmp_path / "shop daily.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_


def problem_of(path: Path) -> tuple[int | None, str, str]:
    """The only problem of a file."""
    with pytest.raises(ReportMistake) as caught:
        read_report(path)
    [problem] = caught.value.problems
    assert str(path) in str(caught.value)
    return problem.line, problem.place, f"{problem.problem} {problem.remedy}"


@pytest.mark.parametrize("shipped", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_reports_can_be_used(shipped: Path) -> None:
    report = read_report(shipped)
    assert report.database == "demo"
    assert report.ready_by
    assert any(item.chart for item in report.items)


def test_there_are_two_of_them() -> None:
    assert len(list(SHIPPED.glob("*.yaml"))) >= 2


def test_a_whole_file_is_read(write) -> None:
    report = read_report(write(WHOLE))
    assert report.name == "shop-daily"
    orders, customers = report.items
    assert orders.expect.rows is not None
    assert (orders.expect.rows.min, orders.expect.rows.max) == (1, 4)
    assert orders.chart is not None
    assert orders.chart.y == ("orders",)
    assert customers.expect.rows is not None
    assert customers.expect.rows.max == 1
    assert report.recipients[1].to == ("office@example.org",)


@pytest.mark.parametrize("written", ["16:05", '"16:05"'])
def test_a_time_of_day_needs_no_quotes(write, written: str) -> None:
    """YAML 1.1 takes 16:05 for a number in base 60."""
    assert read_report(write(WHOLE.replace('"06:00"', written))).ready_by == "16:05"


@pytest.mark.parametrize(
    ("old", "new", "line", "place", "words"),
    [
        ("title: The shop\n", "", 1, "title", "is missing"),
        ("database: demo", "databse: demo", 2, "databse", "Did you mean 'database'"),
        ("    sql: SELECT", "    sqll: SELECT", 13, "items.1.sqll", "Did you mean 'sql'"),
        ("kind: bar", "kind: pie", 20, "items.1.chart.kind", "'bar'"),
        ('"06:00"', '"25:00"', 4, "ready_by", "time of day"),
        ("Europe/Berlin", "Europe/Atlantis", 3, "timezone", "write it as Europe/Berlin"),
        ("to: office@example.org", "to: []", 9, "recipients.2", "addresses"),
        ("slack-webhook/shop-team", "shop-team", 8, "recipients.1.block", "TYPE/NAME"),
        ("rows: {min: 1, max: 4}", "rows: {min: 5, max: 4}", 17, "items.1.expect.rows", "both"),
        ("x: status", "x: state", 12, "items.1", "'state'"),
        ("{column: orders, at_least: 0}", "{column: orders}", 19, "items.1.expect.checks.1", "not"),
        ("{{ yesterday }}", "{{ yesterady }}", 23, "items.2.question", "yesterday"),
        ("{{ since }}", "'{{ since }}'", 13, "items.1.sql", "Write it without"),
        ("{{ since }}", "{{ since", 13, "items.1.sql", "{{ yesterday }}"),
        ("  since: ", "  today: x\n  since: ", 6, "parameters.today", "built in"),
        ("title: Customers", "title: Orders by status!", 11, "items", "different titles"),
        ("results: [csv, parquet]", "results: [csv, xlsx]", 10, "results.2", "'parquet'"),
        ("days_ago(30)", "days_ago(10**9)", 6, "parameters.since", "days_ago(7)"),
        ("title: The shop", 'title: "{{ 1 / 0 }}"', 1, "title", "division by zero"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_a_remedy(
    write, old: str, new: str, line: int, place: str, words: str
) -> None:
    assert WHOLE.count(old) == 1
    found = problem_of(write(WHOLE.replace(old, new)))
    assert found[:2] == (line, place), found
    assert words.casefold() in found[2].casefold(), found


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(write) -> None:
    text = WHOLE.replace("kind: bar", "kind: pie").replace("database:", "databse:")
    with pytest.raises(ReportMistake) as caught:
        read_report(write(text))
    assert [problem.line for problem in caught.value.problems] == [2, 20]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("title: {{ yesterday }}\n", 1, "must stand in quotes"),
        ("title: a\ntitle: b\n", 2, "Keep one"),
        ("title: a\n\titems: []\n", 2, "spaces"),
        ("title: a\nitems: &x [*x]\n", 2, "contains itself"),
        ("- a\n", 1, "Begin with"),
        ("", 1, "Begin with"),
        ("title: !!python/object:os.system x\n", 1, "not YAML"),
        ("title: 'a\n", 2, "not YAML"),
        ("title: a\nday: 2026-13-45\n", None, "month must be in 1..12"),
        ("[" * 20_000, None, "nested too deeply"),
    ],
)
def test_what_is_no_report_at_all_is_said_too(
    write, text: str, line: int | None, words: str
) -> None:
    found = problem_of(write(text))
    assert found[0] == line, found
    assert words in found[2], found


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    line, place, words = problem_of(tmp_path / "nowhere.yaml")
    assert (line, place) == (None, "file")
    assert "Check its path" in words


def test_a_file_of_other_characters(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("title: Café\n".encode("latin-1"))
    assert "UTF-8" in problem_of(path)[2]


@settings(max_examples=60)
@given(st.data())
def test_no_damage_to_a_file_leads_to_anything_but_a_mistake(tmp_path_factory, data) -> None:
    start = data.draw(st.integers(0, len(WHOLE) - 1))
    end = data.draw(st.integers(start, min(len(WHOLE), start + 40)))
    put = data.draw(st.text(alphabet=":-{}[]'\"\n \t#&*!|>%@x1", max_size=6))
    path = tmp_path_factory.mktemp("damaged") / "report.yaml"
    path.write_text(WHOLE[:start] + put + WHOLE[end:], encoding="utf-8")
    with contextlib.suppress(ReportMistake):
        read_report(path)


@pytest.mark.parametrize("value", ["null", "[]", "{}", "7", "x", "[1, {a: b}]", "true"])
def test_no_value_in_the_wrong_place_leads_to_anything_but_a_mistake(write, value: str) -> None:
    for line in WHOLE.splitlines():
        key, colon, rest = line.partition(": ")
        if colon and not rest.startswith(("{", "[")):
            with contextlib.suppress(ReportMistake):
                read_report(write(WHOLE.replace(line, f"{key}: {value}")))


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ("\n  - {title: A, sqll: SELECT 1}", ["items.1.sqll"]),
        (" []", ["items"]),
    ],
)
def test_a_list_is_empty_only_where_it_is(write, items: str, told: list[str]) -> None:
    with pytest.raises(ReportMistake) as caught:
        read_report(write(f"title: a\ndatabase: demo\nitems:{items}\n"))
    assert [problem.place for problem in caught.value.problems] == told


def test_titles_of_other_scripts_have_names_of_their_own(write) -> None:
    text = WHOLE.replace("Orders by status", "注文").replace("title: Customers", "title: 顧客")
    keys = [item.key for item in read_report(write(text)).items]
    assert len(set(keys)) == 2
    assert all(key.startswith("item-") for key in keys)
