"""Every item of a report run under one deadline; one that fails takes no other down."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hexprefect.errors import HexprefectError
from hexprefect.reports.change import change_since
from hexprefect.reports.expectations import check_result
from hexprefect.reports.file import Item, Report
from hexprefect.reports.outcome import Finding, ItemOutcome
from hexprefect.reports.parameters import Parameters, built_in_dates
from hexprefect.reports.pinning import Pin, fixed_values, moving_values, why_not_pinned
from hexprefect.text2sql import Database, Rows
from hexprefect.text2sql.errors import StatementFailed, StatementRefused

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """How a question ended."""

    sql: str | None
    columns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    truncated: bool = False
    error: str | None = None
    """Why there is no answer; None when there is one."""
    warnings: tuple[str, ...] = ()
    flow_run_id: str | None = None


AskQuestion = Callable[[str, str, float], Awaitable[Asked]]
"""Answers a question, with its evidence, within so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What a run knows before it begins."""

    report: Report
    date: datetime.date
    parameters: Parameters
    due_at: float
    """Epoch seconds at which every item must have ended."""
    pins: Mapping[str, Pin] = field(default_factory=dict)
    """By the item's key."""
    before: Mapping[str, ItemOutcome] = field(default_factory=dict)
    """The outcomes of the night before, by the item's key."""
    before_date: str = ""
    kept: Mapping[str, ItemOutcome] = field(default_factory=dict)
    """Outcomes of an earlier run of this very night, by the item's key."""

    def fingerprint(self, item: Item) -> str:
        """Of what the item asks tonight: text, SQL, parameters, expectations, database."""
        asked = {
            "database": self.report.database,
            "item": item.model_dump(mode="json", exclude={"chart"}),
            "parameters": self.parameters.used_in(*_templates(item)),
        }
        return _digest(asked)

    def answered_before(self, item: Item) -> ItemOutcome | None:
        """What an earlier run of this night has to show for the item as it is asked now."""
        known = self.kept.get(item.key)
        if known is None or not known.has_rows or known.fingerprint != self.fingerprint(item):
            return None
        return known

    def time_left_s(self) -> float:
        """Seconds until every item must have ended; negative once that has passed."""
        return self.due_at - time.time()


@dataclass(frozen=True, slots=True)
class Ran:
    """What running a night brought."""

    outcomes: tuple[ItemOutcome, ...]
    """In the order of the file."""
    pins: Mapping[str, Pin]
    """For the next night."""


async def run_items(
    night: Night,
    *,
    database: Database,
    ask: AskQuestion,
    on_outcome: Callable[[ItemOutcome], None] | None = None,
) -> Ran:
    """Run every item that an earlier run of the night did not answer.

    Args:
        night: the report and what is known of it.
        database: where statements run, through the same guard as a model's.
        ask: runs a question as a query of its own.
        on_outcome: told of each item as it ends, so that it can be kept.

    Items that have not ended when the report is due are given up: a report in time that says what
    is missing is worth more than a whole one that is late.
    """
    at_once = asyncio.Semaphore(night.report.at_once)
    runner = _Runner(night, database, ask)

    async def run(item: Item) -> ItemOutcome:
        async with at_once:
            outcome = await runner.run(item)
        if on_outcome is not None:
            on_outcome(outcome)
        return outcome

    outcomes = await asyncio.gather(*(run(item) for item in night.report.items))
    keys = {item.key for item in night.report.items}
    kept = {key: pin for key, pin in {**night.pins, **runner.pins}.items() if key in keys}
    return Ran(tuple(outcomes), {key: kept[key] for key in kept if key not in runner.dropped})


def all_failed(night: Night, reason: str) -> Ran:
    """A run in which nothing could be run at all: what an earlier run has answered stays."""

    def outcome(item: Item) -> ItemOutcome:
        known = night.answered_before(item)
        return known or replace(_shown(night, item), state="failed", reason=reason)

    return Ran(tuple(outcome(item) for item in night.report.items), night.pins)


class _Runner:
    def __init__(self, night: Night, database: Database, ask: AskQuestion) -> None:
        self.night = night
        self.database = database
        self.ask = ask
        self.pins: dict[str, Pin] = {}
        self.dropped: set[str] = set()

    async def run(self, item: Item) -> ItemOutcome:
        """One item to its end, whatever happens."""
        known = self.night.answered_before(item)
        if known is not None and known.state == "answered":
            return known
        outcome = await self._run(item)
        if known is not None and not outcome.has_rows:
            # Rows that are not as expected are more than none.
            return known
        return outcome

    async def _run(self, item: Item) -> ItemOutcome:
        began = time.monotonic()
        blank = replace(_shown(self.night, item), fingerprint=self.night.fingerprint(item))
        left_s = self.night.time_left_s()
        if left_s <= 0:
            return replace(blank, reason="It was not begun when the report was due.")
        try:
            async with asyncio.timeout(left_s):
                outcome = await self._answer(item, blank)
        except TimeoutError:
            outcome = replace(blank, reason="It was not ready when the report was due.")
        except HexprefectError as error:
            outcome = replace(blank, reason=str(error))
        except Exception as error:
            # Ours to mend, but no reason to lose the other items.
            logger.exception("The item %r failed in an unforeseen way", item.title)
            outcome = replace(blank, reason=f"{type(error).__name__}: {error}")
        outcome = replace(outcome, took_s=round(time.monotonic() - began, 3))
        try:
            return self._judged(item, outcome)
        except Exception as error:
            logger.exception("The item %r could not be checked", item.title)
            finding = Finding("it can be checked", False, f"{type(error).__name__}: {error}")
            return replace(outcome, state="doubtful", findings=(finding,))

    async def _answer(self, item: Item, blank: ItemOutcome) -> ItemOutcome:
        if item.sql is not None:
            sql = self.night.parameters.sql(item.sql, dialect=self.database.dialect)
            blank = replace(blank, sql=sql.strip(), source="pinned SQL")
            try:
                return _with_rows(blank, await self.database.execute(sql))
            except (StatementFailed, StatementRefused) as error:
                return replace(blank, state="failed", reason=str(error))
        if item.pin and (pin := self.night.pins.get(item.key)) is not None:
            reused = await self._from_pin(item, pin, blank)
            if reused.has_rows or reused.source is not None:
                return reused
            blank = replace(blank, notes=reused.notes)
        return await self._from_model(item, blank)

    async def _from_pin(self, item: Item, pin: Pin, blank: ItemOutcome) -> ItemOutcome:
        """The kept statement's rows; without a source when the question is to be asked anew."""
        if pin.asked != _asked_fingerprint(self.night, item):
            return replace(blank, notes=("The question has changed: it was asked anew.",))
        schema = await self.database.schema()
        if schema.restricted_to(pin.tables).fingerprint != pin.schema:
            self.dropped.add(item.key)
            tables = ", ".join(pin.tables)
            note = f"The schema of {tables} has changed since {pin.verified_on}: asked anew."
            return replace(blank, notes=(note,))
        sql = pin.sql_for(self.night.parameters.used_in(*_question_templates(item)))
        kept = replace(blank, sql=sql, source="kept SQL")
        note = f"With the SQL that was verified on {pin.verified_on}."
        try:
            return replace(_with_rows(kept, await self.database.execute(sql)), notes=(note,))
        except StatementFailed as error:
            if error.cause in ("timeout", "connection"):
                return replace(kept, state="failed", reason=str(error))
            why = str(error)
        except StatementRefused as error:
            why = str(error)
        self.dropped.add(item.key)
        return replace(blank, notes=(f"The kept SQL ran no more: {why} It was asked anew.",))

    async def _from_model(self, item: Item, blank: ItemOutcome) -> ItemOutcome:
        evidence = self.night.parameters.text(item.evidence)
        asked = await self.ask(blank.question or "", evidence, max(1.0, self.night.time_left_s()))
        outcome = replace(
            blank,
            sql=asked.sql,
            source="a model",
            flow_run_id=asked.flow_run_id,
            notes=(*blank.notes, *asked.warnings),
        )
        if asked.error is not None:
            return replace(outcome, state="failed", reason=asked.error)
        outcome = replace(
            outcome,
            state="answered",
            columns=asked.columns,
            types=asked.types,
            rows=asked.rows,
            truncated=asked.truncated,
        )
        return await self._pinned(item, outcome) if item.pin else outcome

    async def _pinned(self, item: Item, outcome: ItemOutcome) -> ItemOutcome:
        """Keep the statement for other nights, where it is as expected and does not depend on this
        one."""
        self.dropped.add(item.key)
        sql = outcome.sql or ""
        unmet = [one for one in check_result(item.expect, outcome) if not one.met]
        values = self.night.parameters.used_in(*_question_templates(item))
        why = "it is not as expected" if unmet or not outcome.rows else None
        if called := self.night.parameters.called_in(*_question_templates(item)):
            why = (
                why
                or f"its question computes a day with {called[0]}: one under `parameters:` moves"
            )
        why = why or why_not_pinned(
            sql,
            dialect=self.database.dialect,
            question=f"{item.question} {item.evidence}",
            values=values,
            dates=_dates(self.night),
        )
        if why is not None:
            return replace(outcome, notes=(*outcome.notes, f"Its SQL was not kept: {why}."))
        checked = await self.database.check(sql)
        schema = await self.database.schema()
        self.dropped.discard(item.key)
        self.pins[item.key] = Pin(
            asked=_asked_fingerprint(self.night, item),
            sql=sql,
            dialect=self.database.dialect,
            values=moving_values(values),
            tables=checked.tables,
            schema=schema.restricted_to(checked.tables).fingerprint,
            verified_on=self.night.date.isoformat(),
        )
        return outcome

    def _judged(self, item: Item, outcome: ItemOutcome) -> ItemOutcome:
        """With its expectations checked and the change since the night before."""
        if not outcome.has_rows:
            return outcome
        before = self.night.before.get(item.key)
        findings = check_result(item.expect, outcome, before)
        met = all(finding.met for finding in findings)
        change = None
        if before is not None:
            change = change_since(
                before,
                outcome,
                since=self.night.before_date,
                compare_by=item.compare_by or (),
            )
        return replace(
            outcome,
            state="answered" if met else "doubtful",
            findings=findings,
            change=change,
        )


def _shown(night: Night, item: Item) -> ItemOutcome:
    """The item before anything is known of it."""

    def text(template: str | None) -> str | None:
        if template is None:
            return None
        try:
            return night.parameters.text(template)
        except HexprefectError:
            return template

    return ItemOutcome(
        key=item.key,
        title=text(item.title) or item.title,
        state="failed",
        question=text(item.question),
        sql=item.sql,
    )


def _dates(night: Night) -> list[str]:
    return [str(day) for day in built_in_dates(night.date).values() if not callable(day)]


def _with_rows(outcome: ItemOutcome, rows: Rows) -> ItemOutcome:
    return replace(
        outcome,
        state="answered",
        columns=rows.columns,
        types=rows.types,
        rows=rows.rows,
        truncated=rows.truncated,
        notes=(*outcome.notes, *rows.notes),
    )


def _asked_fingerprint(night: Night, item: Item) -> str:
    asked: dict[str, Any] = {
        "database": night.report.database,
        "question": item.question,
        "evidence": item.evidence,
    }
    if fixed := fixed_values(night.parameters.used_in(*_question_templates(item))):
        asked["parameters"] = fixed
    return _digest(asked)


def _question_templates(item: Item) -> tuple[str, ...]:
    return (item.question or "", item.evidence)


def _templates(item: Item) -> tuple[str, ...]:
    return (item.title, item.question or "", item.sql or "", item.evidence)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
