"""Parameters: text in questions, literals in SQL, whatever their value."""

from __future__ import annotations

import datetime
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.errors import CallerMistake
from hexprefect.reports.file import Item, Report
from hexprefect.reports.parameters import Parameters, built_in_dates, parameters_of, sql_literal

NIGHT = datetime.date(2026, 3, 1)


def report(**parameters: object) -> Report:
    return Report(
        title="r", database="demo", parameters=parameters, items=(Item(title="i", sql="SELECT 1"),)
    )


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ today }}", "2026-03-01"),
        ("{{ yesterday }}", "2026-02-28"),
        ("{{ days_ago(7) }}", "2026-02-22"),
        ("{{ week_start }}", "2026-02-23"),
        ("{{ month_start }} to {{ yesterday }}", "2026-02-01 to 2026-02-28"),
        ("{{ last_month_start }} to {{ last_month_end }}", "2026-01-01 to 2026-01-31"),
        ("{{ year_start }}", "2026-01-01"),
        ("{{ yesterday.strftime('%d.%m.%Y') }}", "28.02.2026"),
        ("no parameter: 100 % {of} it", "no parameter: 100 % {of} it"),
    ],
)
def test_the_built_in_dates(template: str, expected: str) -> None:
    assert parameters_of(report(), date=NIGHT).text(template) == expected


@given(st.dates(min_value=datetime.date(2000, 1, 1), max_value=datetime.date(2100, 1, 1)))
def test_the_built_in_dates_are_before_the_night_and_in_order(night: datetime.date) -> None:
    dates = built_in_dates(night)
    yesterday = dates["yesterday"]
    assert dates["today"] - yesterday == datetime.timedelta(days=1)
    assert dates["week_start"].weekday() == 0
    assert 0 <= (yesterday - dates["week_start"]).days < 7
    assert dates["year_start"] <= dates["month_start"] <= yesterday
    assert dates["last_month_start"] <= dates["last_month_end"] < dates["month_start"]
    assert (dates["month_start"] - dates["last_month_end"]).days == 1


def test_own_parameters_build_on_those_above_them_and_can_be_replaced() -> None:
    described = report(year=2024, first="{{ year }}-01-01")
    assert parameters_of(described, date=NIGHT).text("{{ first }}") == "2024-01-01"
    replaced = parameters_of(described, date=NIGHT, given={"year": 2023})
    assert replaced.text("{{ first }}") == "2023-01-01"


def test_an_unknown_parameter_of_the_run_is_refused() -> None:
    with pytest.raises(CallerMistake, match=r"no parameter 'yaer'.*year"):
        parameters_of(report(year=2024), date=NIGHT, given={"yaer": 2023})


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (7, "7"),
        (-1.5, "-1.5"),
        (NIGHT, "'2026-03-01'"),
        ("O'Hara", "'O''Hara'"),
    ],
)
def test_literals(value: object, literal: str) -> None:
    assert sql_literal(value, dialect="sqlite") == literal


@pytest.mark.parametrize("value", [[1], float("nan"), float("inf"), {"a": 1}, object()])
def test_what_has_no_literal_is_refused(value: object) -> None:
    with pytest.raises(CallerMistake, match="cannot stand in SQL"):
        sql_literal(value, dialect="sqlite")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_no_text_can_leave_its_literal(text: str) -> None:
    """Whatever it holds, the database reads the very same text back."""
    sql = Parameters({"x": text}).sql("SELECT {{ x }}", dialect="sqlite")
    with closing(sqlite3.connect(":memory:")) as database:
        assert database.execute(sql).fetchall() == [(text,)]


def test_text_beside_a_parameter_is_put_together_in_it() -> None:
    sql = Parameters({"x": "50%"}).sql("SELECT {{ x ~ '%' }}", dialect="sqlite")
    assert sql == "SELECT '50%%'"


@pytest.mark.parametrize(
    "template",
    [
        "{{ nothing }}",
        "{{ x.__class__.__mro__ }}",
        "{{ x / 0 }}",
        "{% for %}",
        "{{ range(10**9) }}",
    ],
)
def test_what_cannot_be_computed_is_the_files_mistake(template: str) -> None:
    with pytest.raises(CallerMistake):
        Parameters({"x": 1}).text(template)
