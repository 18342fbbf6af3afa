"""Which night a run belongs to and when it is due: by the clock of the report's time zone."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.reports.due import RENDERING_S, due
from hexprefect.reports.file import Item, Report

BERLIN = ZoneInfo("Europe/Berlin")


def report(ready_by: str | None = "06:00", zone: str = "Europe/Berlin") -> Report:
    return Report(
        title="r",
        database="demo",
        timezone=zone,
        ready_by=ready_by,
        ready_in_s=900,
        items=(Item(title="i", sql="SELECT 1"),),
    )


def at(text: str) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("scheduled", "night", "due_at"),
    [
        ("2026-12-01T05:00", "2026-12-01", "2026-12-01T06:00"),
        ("2026-11-30T22:00", "2026-12-01", "2026-12-01T06:00"),
        ("2026-12-01T00:30", "2026-12-01", "2026-12-01T06:00"),
        # The nights on which the clock is changed.
        ("2026-03-29T01:00", "2026-03-29", "2026-03-29T06:00"),
        ("2026-10-25T01:00", "2026-10-25", "2026-10-25T06:00"),
    ],
)
def test_a_run_before_its_time_is_due_then(scheduled: str, night: str, due_at: str) -> None:
    found = due(report(), scheduled_at=at(scheduled), started_at=at(scheduled))
    assert (found.date.isoformat(), found.due_at) == (night, at(due_at))
    assert found.items_due_at == found.due_at - RENDERING_S


def test_a_run_that_starts_late_keeps_its_night_and_gets_the_usual_time() -> None:
    found = due(report(), scheduled_at=at("2026-12-01T05:00"), started_at=at("2026-12-01T09:00"))
    assert found.date.isoformat() == "2026-12-01"
    assert found.due_at == at("2026-12-01T09:00") + 900


def test_a_run_by_hand_during_the_day_is_of_that_day() -> None:
    noon = at("2026-12-01T12:00")
    found = due(report(), scheduled_at=noon, started_at=noon)
    assert (found.date.isoformat(), found.due_at) == ("2026-12-01", noon + 900)


def test_a_run_by_hand_in_the_evening_takes_nothing_from_the_morning() -> None:
    """The schedule's run would keep what it has answered, of a day that was not over."""
    evening, morning = at("2026-11-30T19:00"), at("2026-12-01T05:00")
    found = due(report(), scheduled_at=evening, started_at=evening, by_hand=True)
    assert (found.date.isoformat(), found.due_at) == ("2026-11-30", evening + 900)
    scheduled = due(report(), scheduled_at=morning, started_at=morning)
    by_hand = due(report(), scheduled_at=morning, started_at=morning, by_hand=True)
    assert by_hand == scheduled
    assert scheduled.date.isoformat() == "2026-12-01"


def test_a_night_of_the_past_can_be_asked_for() -> None:
    noon = at("2026-12-01T05:00")
    asked = datetime.date(2026, 11, 3)
    found = due(report(), scheduled_at=noon, started_at=noon, date=asked)
    assert (found.date, found.due_at) == (asked, noon + 900)


def test_the_date_is_that_of_the_reports_time_zone() -> None:
    moment = at("2026-12-01T00:30")
    assert due(report(None), scheduled_at=moment, started_at=moment).date.day == 1
    assert due(report(None, "UTC"), scheduled_at=moment, started_at=moment).date.day == 30


@given(
    scheduled=st.floats(1_767_225_600, 1_830_297_600),
    late_s=st.floats(0, 100_000),
    hour=st.integers(0, 23),
    zone=st.sampled_from(["Europe/Berlin", "UTC", "America/New_York", "Australia/Lord_Howe"]),
)
def test_a_run_always_has_time_and_keeps_some_for_writing(
    scheduled: float, late_s: float, hour: int, zone: str
) -> None:
    started = scheduled + late_s
    found = due(report(f"{hour:02d}:30", zone), scheduled_at=scheduled, started_at=started)
    assert started < found.items_due_at < found.due_at
    assert found.due_at - started <= 13 * 3600
    local = datetime.datetime.fromtimestamp(scheduled, ZoneInfo(zone)).date()
    assert found.date - local in (datetime.timedelta(0), datetime.timedelta(days=1))
    again = due(report(f"{hour:02d}:30", zone), scheduled_at=scheduled, started_at=started + 60)
    assert again.date == found.date, "a repeated run belongs to the same night"
