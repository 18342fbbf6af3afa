"""One night of a report: run its items, write its files, and keep what the next night needs."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.databases import open_database, shown_database
from hexprefect.reports.archive import Archive, NightFolder
from hexprefect.reports.due import Due, due
from hexprefect.reports.file import Report
from hexprefect.reports.outcome import ReportOutcome
from hexprefect.reports.parameters import parameters_of
from hexprefect.reports.running import AskQuestion, Night, Ran, all_failed, run_items
from hexprefect.reports.writing import Written, write_report
from hexprefect.settings import state_folder
from hexprefect.text2sql import Database, Limits

OpenDatabase = Callable[[Report], Awaitable[Database]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which night of a report, and how."""

    report: Report
    scheduled_at: float
    """Epoch seconds for which the run was scheduled."""
    date: datetime.date | None = None
    """A night of the past; by default the one that the run was scheduled for."""
    by_hand: bool = False
    """Whether a person or a program has made the run, and no schedule."""
    parameters: Mapping[str, Any] | None = None
    archive: str | Path | None = None
    """Folder of all reports; one in the state folder by default."""
    again: bool = False
    """Run also what an earlier run of the night has answered."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A night that has been run."""

    written: Written
    folder: NightFolder
    digest: str
    """Of what the document says: equal for runs of a night that brought the same."""

    @property
    def outcome(self) -> ReportOutcome:
        """What became of it."""
        return self.written.outcome


def archive_folder(given: str | Path | None = None) -> Path:
    """Where reports are archived: as given, or in the state folder."""
    return Path(given).expanduser() if given else state_folder() / "reports"


async def run_night(
    wanted: Wanted, ask: AskQuestion, *, opened_by: OpenDatabase | None = None
) -> Finished:
    """Run a night, or what an earlier run of it has left undone.

    Args:
        wanted: the report and the night.
        ask: answers a question as a query of its own.
        opened_by: opens the database; by default the one that the report names.

    Raises:
        CallerMistake: a parameter makes no sense, or the night is being run already.
    """
    report = wanted.report
    started_at = time.time()
    when = due(
        report,
        scheduled_at=wanted.scheduled_at,
        started_at=started_at,
        date=wanted.date,
        by_hand=wanted.by_hand,
    )
    archive = Archive.of(archive_folder(wanted.archive), report.name or "report")
    folder = archive.night(when.date)
    parameters = parameters_of(report, date=when.date, given=wanted.parameters)
    with folder.locked():
        earlier = archive.before(when.date)
        night = Night(
            report=report,
            date=when.date,
            parameters=parameters,
            due_at=when.items_due_at,
            pins=archive.pins(),
            before={} if earlier is None else {item.key: item for item in earlier.items},
            before_date="" if earlier is None else earlier.date,
            kept={} if wanted.again else folder.kept_items(),
        )
        ran = await _run(night, ask, opened_by or _open_database, folder)
        archive.keep_pins(ran.pins)
        outcome = _outcome(night, ran, when, started_at, folder.outcome())
        written = await asyncio.to_thread(write_report, report, outcome, folder)
        folder.keep_outcome(written.outcome)
    return Finished(written, folder, digest_of(written.outcome))


def digest_of(outcome: ReportOutcome) -> str:
    """Of what a report says, without the times that it took."""
    record = outcome.as_record()
    for name in ("started_at", "ended_at", "due_at"):
        record.pop(name)
    for item in record["items"]:
        item.pop("took_s")
        item.pop("flow_run_id")
    text = json.dumps(record, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def _run(night: Night, ask: AskQuestion, opened_by: OpenDatabase, folder: NightFolder) -> Ran:
    try:
        async with asyncio.timeout(max(1.0, night.time_left_s())):
            database = await opened_by(night.report)
    except HexprefectError as error:
        return all_failed(night, str(error))
    except TimeoutError:
        return all_failed(night, "The database had not answered when the report was due.")
    async with database:
        return await run_items(night, database=database, ask=ask, on_outcome=folder.keep_item)


async def _open_database(report: Report) -> Database:
    limits = Limits(
        timeout_s=report.statement_timeout_s,
        max_rows=report.max_rows,
        max_bytes=64_000_000,
        connections=report.at_once,
    )
    return await open_database(report.database, tenant=report.tenant, limits=limits)


def _outcome(
    night: Night, ran: Ran, when: Due, started_at: float, earlier: ReportOutcome | None
) -> ReportOutcome:
    outcome = ReportOutcome(
        name=night.report.name or "report",
        title=night.parameters.text(night.report.title),
        database=shown_database(night.report.database),
        date=when.date.isoformat(),
        timezone=night.report.timezone,
        due_at=when.due_at,
        started_at=started_at,
        ended_at=time.time(),
        items=ran.outcomes,
    )
    if earlier is not None and digest_of(earlier) == digest_of(outcome):
        # Nothing is new: the report stays the one that was ready then, its seconds included.
        return replace(
            outcome,
            due_at=earlier.due_at,
            started_at=earlier.started_at,
            ended_at=earlier.ended_at,
            items=earlier.items,
        )
    return outcome
