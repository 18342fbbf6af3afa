"""Verified SQL is kept from night to night, with tonight's dates, or not at all."""

from __future__ import annotations

import datetime
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.reports.parameters import built_in_dates
from hexprefect.reports.pinning import Pin, fixed_values, moving_values, why_not_pinned

NIGHT = datetime.date(2026, 12, 1)
YESTERDAY = {"yesterday": "2026-11-30"}


def why_not(
    sql: str,
    question: str = "On {{ yesterday }}?",
    values: dict[str, str] | None = None,
    night: datetime.date = NIGHT,
) -> str | None:
    dates = [str(day) for day in built_in_dates(night).values() if not callable(day)]
    values = YESTERDAY if values is None else values
    return why_not_pinned(sql, dialect="sqlite", question=question, values=values, dates=dates)


def pin(sql: str, values: dict[str, str] | None = None) -> Pin:
    moving = moving_values(YESTERDAY if values is None else values)
    return Pin("asked", sql, "sqlite", moving, ("orders",), "schema", "2026-12-01")


@pytest.mark.parametrize(
    ("sql", "tomorrow"),
    [
        ("SELECT n FROM t WHERE d = '2026-11-30'", "SELECT n FROM t WHERE d = '2026-12-01'"),
        (
            "SELECT n FROM t WHERE d >= '2026-11-30' AND d < '2026-12-01'",
            "SELECT n FROM t WHERE d >= '2026-12-01' AND d < '2026-12-02'",
        ),
        (
            "SELECT n FROM t WHERE d LIKE '2026-11-30%' /* '2026-11-30' */ LIMIT 10",
            "SELECT n FROM t WHERE d LIKE '2026-12-01%' /* '2026-11-30' */ LIMIT 10",
        ),
        (
            "SELECT n FROM t WHERE d = '2026-11-30 00:00:00' AND \"2026-11-30\" = 1",
            "SELECT n FROM t WHERE d = '2026-12-01 00:00:00' AND \"2026-11-30\" = 1",
        ),
    ],
)
def test_the_dates_of_a_kept_statement_move_with_the_night(sql: str, tomorrow: str) -> None:
    assert why_not(sql) is None
    assert pin(sql).sql_for({"yesterday": "2026-12-01"}) == tomorrow
    assert pin(sql).sql_for(YESTERDAY) == sql


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n FROM t WHERE d = date('now', '-1 day')",
        "SELECT n FROM t WHERE strftime('%Y-%m-%d', d) = '30.11.2026'",
        "SELECT n FROM t WHERE d = '2026-11-30' AND y = '2026'",
        "SELECT n FROM t WHERE d = '2026-11-30' AND m = 11",
        "SELECT n FROM t WHERE d BETWEEN '2026-11-01' AND '2026-11-30'",
        "SELECT n FROM t WHERE d >= '2026-11-30' AND d < '2026-11-30' || '2026'",
        # The week up to that day, the month before it, its seconds since 1970.
        "SELECT n FROM t WHERE d BETWEEN '2026-11-24' AND '2026-11-30'",
        "SELECT n FROM t WHERE d <= '2026-11-30' AND month = '2026-10'",
        "SELECT n FROM t WHERE d <= '2026-11-30' AND md > '10-31'",
        "SELECT n FROM t WHERE d <= '2026-11-30' AND at < 1795996800",
    ],
)
def test_a_statement_that_may_depend_on_the_night_otherwise_is_not_kept(sql: str) -> None:
    assert why_not(sql) is not None


def test_a_question_without_parameters_is_kept_unless_it_holds_the_night() -> None:
    assert why_not("SELECT COUNT(*) FROM t WHERE year = 2024", "Since 2024?", {}) is None
    assert why_not("SELECT COUNT(*) FROM t LIMIT 5", "The five best?", {}) is None
    assert why_not("SELECT COUNT(*) FROM t WHERE d = '2026-12-01'", "Today?", {}) is not None


def test_a_constant_of_the_question_is_no_date_of_the_night() -> None:
    question = "How many of {{ yesterday }} were born after 2026-11-01?"
    assert why_not("SELECT 1 FROM t WHERE d='2026-11-30' AND b>'2026-11-01'", question) is None


@pytest.mark.parametrize(
    ("sql", "values", "other"),
    [
        ("SELECT n FROM t WHERE price > 50 LIMIT 5", {"n": "5"}, {"n": "6"}),
        ("SELECT 1 WHERE d >= '2024-01-01' AND d < '2024-02-01'", {"m": "01"}, {"m": "02"}),
        ("SELECT 1 WHERE d >= '2024-01-15' AND d < '2025-01-15'", {"y": "2024"}, {"y": "2023"}),
        ("SELECT 1 WHERE city = 'Rome' AND land = 'IT'", {"city": "Rome"}, {"city": "Paris"}),
        ("SELECT 1 WHERE customer = 10000101", {"customer": "10000101"}, {"customer": "7"}),
    ],
)
def test_a_parameter_that_is_no_day_does_not_move(
    sql: str, values: dict[str, str], other: dict[str, str]
) -> None:
    """What a statement says of it may stand anywhere: another value is another question."""
    kept = pin(sql, values)
    assert (kept.sql_for(values), kept.sql_for(other)) == (sql, sql)
    assert fixed_values(values) == values
    assert fixed_values(YESTERDAY) == {}


def test_a_value_that_does_not_move_is_no_date_of_the_night() -> None:
    values = {**YESTERDAY, "year": "2024"}
    question = "Born in {{ year }} and here on {{ yesterday }}?"
    assert why_not("SELECT 1 WHERE d = '2026-11-30' AND born = 2024", question, values) is None
    assert why_not("SELECT 1 WHERE d = '2026-11-30' AND born = 2023", question, values) is not None


def test_the_last_day_that_there_is_has_no_day_after() -> None:
    assert moving_values({"to": "9999-12-31"}) == {"to": "9999-12-31"}


def test_two_parameters_of_one_value_cannot_be_told_apart() -> None:
    values = {"a": "2026-11-30", "b": "2026-11-30"}
    assert "same value" in str(why_not("SELECT '2026-11-30'", "{{ a }} {{ b }}", values))


@given(
    first=st.dates(datetime.date(2020, 1, 1), datetime.date(2030, 1, 1)),
    days=st.integers(-400, 400),
    start=st.integers(0, 3),
)
def test_a_kept_statement_asks_of_another_night_what_it_asked_of_its_own(
    first: datetime.date, days: int, start: int
) -> None:
    """The statement of night A, moved to night B, is the one that would be written on night B."""

    def written(day: datetime.date) -> str:
        since = day - datetime.timedelta(days=start)
        return (
            f"SELECT '{since}' <= '2024-06-15x', '{day}', '{day + datetime.timedelta(days=1)}', 3"
        )

    def values(day: datetime.date) -> dict[str, str]:
        found = {"day": day.isoformat()}
        if start:
            found["since"] = (day - datetime.timedelta(days=start)).isoformat()
        return found

    second = first + datetime.timedelta(days=days)
    kept = Pin("", written(first), "sqlite", moving_values(values(first)), (), "", "")
    moved = kept.sql_for(values(second))
    with closing(sqlite3.connect(":memory:")) as database:
        if start != 1:
            # Where `day` is the day after `since`, it moves by its own name.
            assert moved == written(second)
        database.execute(moved)


def test_a_pin_survives_its_file() -> None:
    kept = pin("SELECT 1")
    assert Pin.from_record(kept.as_record()) == kept
