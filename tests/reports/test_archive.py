"""The archive: whole files, nights in order, one run at a time, and what a killed run has kept."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.reports.archive import Archive, NightIsRunning
from hexprefect.reports.file import slug
from hexprefect.reports.outcome import Change, Finding, ItemOutcome, ReportOutcome
from hexprefect.reports.pinning import Pin
from tests.reports.examples import item, report

NIGHT = datetime.date(2026, 12, 1)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.of(tmp_path, "shop")


def test_looking_at_an_archive_makes_nothing(archive: Archive) -> None:
    assert archive.dates() == []
    assert archive.before(NIGHT) is None
    assert archive.pins() == {}
    assert archive.night(NIGHT).kept_items() == {}
    assert archive.night(NIGHT).delivered() == {}
    assert not archive.folder.exists()


def test_an_outcome_survives_its_file(archive: Archive) -> None:
    outcome = report(
        item("a b", (1, None), ("x", 2.5), findings=(Finding("c", False, "d"),),
             change=Change("2026-11-30", "s", ("x", "y")), notes=("n",)),
        item(key="f", state="failed", reason="r"),
    )  # fmt: skip
    archive.night(NIGHT).keep_outcome(outcome)
    assert archive.night(NIGHT).outcome() == outcome
    assert json.loads((archive.folder / "2026-12-01" / "outcome.json").read_text())["state"] == (
        "partial"
    )


def test_the_night_before_is_the_newest_earlier_one(archive: Archive) -> None:
    for day in (25, 28, 30):
        date = datetime.date(2026, 11, day)
        archive.night(date).keep_outcome(report(item("n", (day,)), date=date.isoformat()))
    archive.night(NIGHT).keep_outcome(report(item("n", (1,))))
    before = archive.before(NIGHT)
    assert before is not None
    assert before.date == "2026-11-30"
    assert archive.before(datetime.date(2026, 11, 25)) is None
    (archive.folder / "notes").mkdir()
    assert len(archive.dates()) == 4


def test_items_of_a_run_that_was_killed_are_kept_until_the_night_is_whole(
    archive: Archive,
) -> None:
    night = archive.night(NIGHT)
    night.keep_outcome(report(item("n", (1,), key="a"), item("n", (1,), key="b")))
    night.keep_item(item("n", (2,), key="a"))
    assert {key: one.rows for key, one in night.kept_items().items()} == {
        "a": ((2,),),
        "b": ((1,),),
    }
    night.keep_outcome(report(item("n", (3,), key="a")))
    assert {key: one.rows for key, one in night.kept_items().items()} == {"a": ((3,),)}


def test_a_damaged_file_is_as_none(archive: Archive) -> None:
    night = archive.night(NIGHT)
    night.write("outcome.json", b'{"name": "sho')
    assert night.outcome() is None


def test_pins_survive_their_file(archive: Archive) -> None:
    pin = Pin("a", "SELECT 1", "sqlite", {"yesterday": "2026-11-30"}, ("t",), "s", "2026-12-01")
    archive.keep_pins({"item": pin})
    assert archive.pins() == {"item": pin}


def test_one_run_of_a_night_at_a_time(archive: Archive) -> None:
    night = archive.night(NIGHT)
    with night.locked():
        with pytest.raises(NightIsRunning, match="being run already"), night.locked():
            pass
        with archive.night(NIGHT + datetime.timedelta(days=1)).locked():
            """Another night is free."""
    with night.locked():
        """And this one is again."""


def test_results_of_an_earlier_run_go(archive: Archive) -> None:
    night = archive.night(NIGHT)
    old, new = night.write("results/old.csv", b"1"), night.write("results/new.csv", b"2")
    night.remove_results({new})
    assert not old.exists()
    assert new.read_bytes() == b"2"


def test_a_write_that_fails_leaves_the_old_file(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = archive.night(NIGHT)
    path = night.write("report.html", b"old")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("hexprefect.reports.archive.os.replace", full)
    with pytest.raises(OSError, match="no space"):
        night.write("report.html", b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


cells = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.lists(st.tuples(cells, cells), max_size=4), st.text(max_size=9))
def test_any_rows_survive_json(rows: list[tuple[object, object]], text: str) -> None:
    outcome = report(item("a b", *rows, title=text, notes=(text,)))
    record = json.loads(json.dumps(outcome.as_record()))
    assert ReportOutcome.from_record(record) == outcome


def test_records_of_other_versions_are_read() -> None:
    record = {**item("n", (1,)).as_record(), "of_a_later_version": 1}
    del record["fingerprint"]
    assert ItemOutcome.from_record(record).rows == ((1,),)


@given(st.text())
def test_every_title_is_a_safe_file_name(title: str) -> None:
    name = slug(title)
    assert name
    assert name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") == ""
    assert len(name) <= 80


def test_titles_in_any_script_have_names_of_their_own() -> None:
    titles = [
        "Продажи",
        "Отчёт",
        "日报",
        "Продажи 2024",
        "Отчёт 2024",
        "x" * 81,
        "x" * 82,
        "!",
        "?",
    ]
    assert len({slug(title) for title in titles}) == len(titles)
    assert slug("Umsätze am Sonntag") == "umsatze-am-sonntag"
