"""A night: every item under one deadline, failures that stay alone, SQL that is kept."""

from __future__ import annotations

import asyncio
import datetime
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from hexprefect.reports.file import Report
from hexprefect.reports.outcome import ItemOutcome
from hexprefect.reports.parameters import Parameters, parameters_of
from hexprefect.reports.running import Asked, Night, Ran, all_failed, run_items
from hexprefect.text2sql import Database, Limits

NIGHT = datetime.date(2026, 12, 1)
COUNT = "SELECT COUNT(*) AS n FROM orders WHERE day = '{day}'"
SLOW = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1000000000) "
    "SELECT COUNT(*) FROM c"
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, day TEXT, status TEXT)")
        days = ("2026-11-30", "2026-11-30", "2026-12-01", "2026-12-01", "2026-12-01")
        database.executemany(
            "INSERT INTO orders (day, status) VALUES (?, 'open')", [(day,) for day in days]
        )
        database.execute("CREATE TABLE other (id INTEGER)")
        database.commit()
    return path


@dataclass
class Model:
    """Answers every question with this statement of the night, and remembers what it was asked."""

    database: Database
    sql: Callable[[str], str]
    asked: list[str] = field(default_factory=list)
    error: str | None = None

    async def __call__(self, question: str, evidence: str, left_s: float) -> Asked:
        self.asked.append(question)
        assert left_s > 0
        if self.error:
            return Asked(None, error=self.error)
        sql = self.sql(question)
        rows = await self.database.execute(sql)
        return Asked(sql, rows.columns, rows.types, rows.rows)


def of_the_day(question: str) -> str:
    return COUNT.format(day=question.split()[-1].rstrip("?"))


def night(
    *items: dict[str, Any], date: datetime.date = NIGHT, due_in_s: float = 60, **known: Any
) -> Night:
    report = Report.model_validate(
        {"title": "r", "database": "demo", "at_once": 4, "items": list(items)}
    )
    return Night(
        report=report,
        date=date,
        parameters=parameters_of(report, date=date),
        due_at=time.time() + due_in_s,
        **known,
    )


async def run(
    wanted: Night,
    shop: Path,
    *,
    sql: Callable[[str], str] = of_the_day,
    error: str | None = None,
    on_outcome: Callable[[ItemOutcome], None] | None = None,
) -> tuple[Ran, Model]:
    limits = Limits(timeout_s=30)
    async with await Database.connect(f"sqlite:///{shop}", limits=limits) as database:
        model = Model(database, sql, error=error)
        ran = await run_items(wanted, database=database, ask=model, on_outcome=on_outcome)
    return ran, model


QUESTION = {"title": "Orders", "question": "How many orders were there on {{ yesterday }}?"}


async def test_pinned_sql_and_questions_are_answered(shop: Path) -> None:
    statement = {"title": "All", "sql": "SELECT COUNT(*) AS n FROM orders WHERE day < {{ today }}"}
    ran, model = await run(night(statement, QUESTION), shop)
    pinned, asked = ran.outcomes
    assert (pinned.state, pinned.rows, pinned.source) == ("answered", ((2,),), "pinned SQL")
    assert (asked.state, asked.rows, asked.source) == ("answered", ((2,),), "a model")
    assert model.asked == ["How many orders were there on 2026-11-30?"]


async def test_a_broken_item_takes_no_other_down(shop: Path) -> None:
    items = [
        {"title": "Write", "sql": "DELETE FROM orders"},
        {"title": "Nowhere", "sql": "SELECT * FROM nowhere"},
        {"title": "Nothing", "sql": "SELECT {{ 1 / 0 }}"},
        {"title": "Good", "sql": "SELECT COUNT(*) FROM orders"},
    ]
    ran, _ = await run(night(*items), shop)
    assert [one.state for one in ran.outcomes] == ["failed", "failed", "failed", "answered"]
    write, nowhere, nothing, _ = ran.outcomes
    assert "query-only" in str(write.reason)
    assert "nowhere" in str(nowhere.reason)
    assert "cannot be computed" in str(nothing.reason)


async def test_a_bug_in_one_item_is_that_items_failure(shop: Path) -> None:
    def bug(question: str) -> str:
        raise RuntimeError("boom")

    good = {"title": "Good", "sql": "SELECT 1"}
    ran, _ = await run(night(QUESTION, good), shop, sql=bug)
    assert [one.state for one in ran.outcomes] == ["failed", "answered"]
    assert ran.outcomes[0].reason == "RuntimeError: boom"


async def test_a_result_that_cannot_be_checked_is_shown_and_marked(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*given: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr("hexprefect.reports.running.check_result", bug)
    ran, _ = await run(night({"title": "Good", "sql": "SELECT 1 AS n"}), shop)
    [found] = ran.outcomes
    assert (found.state, found.rows) == ("doubtful", ((1,),))
    assert found.unmet[0].detail == "RuntimeError: boom"


async def test_what_is_not_ready_when_the_report_is_due_is_given_up(shop: Path) -> None:
    """The statement itself is stopped: the database is free again."""
    ran, _ = await run(night({"title": "Slow", "sql": SLOW}, due_in_s=1.0), shop)
    [slow] = ran.outcomes
    assert slow.state == "failed"
    assert "when the report was due" in str(slow.reason)


async def test_what_was_not_begun_in_time_says_so(shop: Path) -> None:
    ran, model = await run(night(QUESTION, due_in_s=-1), shop)
    assert "not begun" in str(ran.outcomes[0].reason)
    assert model.asked == []


async def test_a_result_of_another_shape_is_shown_and_marked(shop: Path) -> None:
    expect = {"rows": {"min": 10}}
    ran, _ = await run(night({**QUESTION, "expect": expect}), shop)
    [found] = ran.outcomes
    assert (found.state, found.rows) == ("doubtful", ((2,),))
    assert [one.check for one in found.unmet] == ["there are at least 10 rows"]


# -- kept SQL -----------------------------------------------------------------------------------


async def kept_after(shop: Path, item: dict[str, Any] = QUESTION) -> Any:
    ran, _ = await run(night(item), shop)
    return ran.pins


async def test_the_next_night_asks_no_model_and_has_its_own_dates(shop: Path) -> None:
    tomorrow = NIGHT + datetime.timedelta(days=1)
    ran, model = await run(night(QUESTION, date=tomorrow, pins=await kept_after(shop)), shop)
    [found] = ran.outcomes
    assert model.asked == []
    assert (found.source, found.rows) == ("kept SQL", ((3,),))
    assert "verified on 2026-12-01" in found.notes[0]
    assert ran.pins["orders"].verified_on == "2026-12-01"


async def test_a_changed_schema_is_reason_to_ask_anew(shop: Path) -> None:
    pins = await kept_after(shop)
    with closing(sqlite3.connect(shop)) as database:
        database.execute("ALTER TABLE orders ADD COLUMN paid INTEGER")
    ran, model = await run(night(QUESTION, pins=pins), shop)
    [found] = ran.outcomes
    assert len(model.asked) == 1
    assert found.source == "a model"
    assert "schema of orders has changed" in found.notes[0]
    assert ran.pins["orders"].schema != pins["orders"].schema


async def test_a_change_of_other_tables_is_none(shop: Path) -> None:
    pins = await kept_after(shop)
    with closing(sqlite3.connect(shop)) as database:
        database.execute("ALTER TABLE other ADD COLUMN more INTEGER")
    _, model = await run(night(QUESTION, pins=pins), shop)
    assert model.asked == []


async def test_another_question_under_the_same_title_is_asked(shop: Path) -> None:
    pins = await kept_after(shop)
    changed = {**QUESTION, "question": "How many open orders on {{ yesterday }}?"}
    ran, model = await run(night(changed, pins=pins), shop)
    assert len(model.asked) == 1
    assert "question has changed" in ran.outcomes[0].notes[0]


async def test_a_failing_model_does_not_lose_what_was_kept(shop: Path) -> None:
    pins = await kept_after(shop)
    other = {"title": "Other", "question": "What else on {{ yesterday }}?"}
    ran, _ = await run(night(QUESTION, other, pins=pins), shop, error="no instance is alive")
    kept, failed = ran.outcomes
    assert (kept.state, failed.state) == ("answered", "failed")
    assert failed.reason == "no instance is alive"
    assert set(ran.pins) == {"orders"}


@pytest.mark.parametrize(
    ("changed", "why"), [({"pin": False}, ""), ({"expect": {"rows": 7}}, "not as expected")]
)
async def test_only_what_is_as_expected_is_kept(
    shop: Path, changed: dict[str, Any], why: str
) -> None:
    def sql(question: str) -> str:
        return COUNT.format(day="2026-11-30")

    ran, _ = await run(night({**QUESTION, **changed}), shop, sql=sql)
    assert ran.pins == {}
    assert why in " ".join(ran.outcomes[0].notes)


async def test_sql_that_depends_on_the_night_in_other_ways_is_not_kept(shop: Path) -> None:
    def sql(question: str) -> str:
        return "SELECT COUNT(*) FROM orders WHERE day BETWEEN '2026-11-01' AND '2026-11-30'"

    ran, _ = await run(night(QUESTION), shop, sql=sql)
    assert ran.pins == {}
    assert "was not kept: the literal '2026-11-01'" in ran.outcomes[0].notes[0]


async def test_another_value_of_a_parameter_that_is_no_day_is_another_question(shop: Path) -> None:
    def sql(question: str) -> str:
        return "SELECT COUNT(*) FROM orders WHERE id > 25 AND id <= 125 LIMIT 5"

    item = {"title": "Some", "question": "The first {{ most }}?"}
    five, six = (replace(night(item), parameters=Parameters({"most": n})) for n in (5, 6))
    first, _ = await run(five, shop, sql=sql)
    assert set(first.pins) == {"some"}
    _, model = await run(replace(five, pins=first.pins), shop, sql=sql)
    assert model.asked == []
    _, model = await run(replace(six, pins=first.pins), shop, sql=sql)
    assert model.asked == ["The first 6?"]


async def test_a_day_that_the_question_computes_is_not_kept(shop: Path) -> None:
    item = {"title": "Since", "question": "How many orders were there on {{ days_ago(3) }}?"}
    ran, _ = await run(night(item), shop)
    assert ran.pins == {}
    assert "computes a day with days_ago" in ran.outcomes[0].notes[0]


# -- runs of the same night ---------------------------------------------------------------------


async def test_a_second_run_of_a_night_does_only_what_is_left(shop: Path) -> None:
    items = [QUESTION, {"title": "Broken", "sql": "SELECT * FROM nowhere"}]
    kept: dict[str, ItemOutcome] = {}
    first, _ = await run(night(*items), shop, on_outcome=lambda one: kept.update({one.key: one}))
    with closing(sqlite3.connect(shop)) as database:
        database.execute("CREATE TABLE nowhere (id INTEGER)")
        database.execute("DELETE FROM orders")
        database.commit()
    second, model = await run(night(*items, kept=kept), shop)
    assert model.asked == []
    assert second.outcomes[0] == first.outcomes[0]
    assert second.outcomes[1].state == "answered"


@pytest.mark.parametrize(
    "changed",
    [{"evidence": "more"}, {"expect": {"rows": 1}}, {"question": "How many at all on 2026-11-30?"}],
)
async def test_an_item_that_was_changed_meanwhile_is_run_again(
    shop: Path, changed: dict[str, Any]
) -> None:
    first, _ = await run(night(QUESTION), shop)
    kept = {one.key: one for one in first.outcomes}
    _, model = await run(night({**QUESTION, **changed}, kept=kept), shop)
    assert len(model.asked) == 1


async def test_a_second_run_without_the_database_keeps_what_the_first_has_answered(
    shop: Path,
) -> None:
    doubtful = {"title": "Strange", "sql": "SELECT 1 AS n", "expect": {"rows": 7}}
    first, _ = await run(night(QUESTION, doubtful), shop)
    assert [one.state for one in first.outcomes] == ["answered", "doubtful"]
    kept = {one.key: one for one in first.outcomes}
    new = {"title": "New", "sql": "SELECT 2 AS n"}
    ran = all_failed(night(QUESTION, doubtful, new, kept=kept), "no such file")
    assert ran.outcomes[:2] == first.outcomes
    assert (ran.outcomes[2].state, ran.outcomes[2].reason) == ("failed", "no such file")
    changed = {**QUESTION, "question": "How many at all on {{ yesterday }}?"}
    assert all_failed(night(changed, kept=kept), "no such file").outcomes[0].state == "failed"


async def test_rows_that_are_not_as_expected_outlive_a_second_run_that_finds_none(
    shop: Path,
) -> None:
    item = {**QUESTION, "expect": {"rows": 7}}
    first, _ = await run(night(item), shop)
    kept = {one.key: one for one in first.outcomes}
    second, model = await run(night(item, kept=kept), shop, error="no instance is alive")
    assert len(model.asked) == 1
    assert second.outcomes == first.outcomes


async def test_the_change_since_the_night_before_is_told(shop: Path) -> None:
    first, _ = await run(night(QUESTION), shop)
    before = {one.key: one for one in first.outcomes}
    tomorrow = NIGHT + datetime.timedelta(days=1)
    second, _ = await run(
        night(QUESTION, date=tomorrow, before=before, before_date="2026-12-01"), shop
    )
    [found] = second.outcomes
    assert found.change is not None
    assert (found.change.since, found.change.summary) == ("2026-12-01", "2 → 3 (+1, +50.0 %)")


async def test_cancelling_a_night_stops_what_runs(shop: Path) -> None:
    running = asyncio.create_task(run(night({"title": "Slow", "sql": SLOW}), shop))
    await asyncio.sleep(0.3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)


def test_a_database_that_cannot_be_reached_fails_every_item_and_loses_nothing() -> None:
    wanted = replace(night(QUESTION), pins={"orders": object()})  # type: ignore[dict-item]
    ran = all_failed(wanted, "no such file")
    assert [(one.state, one.reason) for one in ran.outcomes] == [("failed", "no such file")]
    assert ran.outcomes[0].question == "How many orders were there on 2026-11-30?"
    assert ran.pins == wanted.pins
