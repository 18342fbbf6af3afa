"""Which night a run belongs to, and when it is due."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from hexprefect.reports.file import Report

FORESIGHT = datetime.timedelta(hours=12)
"""A `ready_by` that is further away has passed already: the run is late, or by hand."""

RENDERING_S = 30.0
"""Kept back for writing and sending the report, where there is as much."""


@dataclass(frozen=True, slots=True)
class Due:
    """The night and its deadline."""

    date: datetime.date
    """In the report's time zone: `today` of its parameters."""
    due_at: float
    """Epoch seconds at which the report is to be with its readers."""
    items_due_at: float
    """Epoch seconds at which its items must have ended."""


def due(
    report: Report,
    *,
    scheduled_at: float,
    started_at: float,
    date: datetime.date | None = None,
    by_hand: bool = False,
) -> Due:
    """The deadline of a run.

    A run that was scheduled at most twelve hours before `ready_by` is due then, and belongs to that
    day, also when its schedule is of the evening before. A later one, and one that starts when the
    report was due already, has `ready_in_s`.

    A run by hand belongs to the day it was made for: one of the evening would leave answers of a
    day that is not over to the next morning's run, which keeps what its night has answered.

    Args:
        report: with its time zone, `ready_by` and `ready_in_s`.
        scheduled_at: epoch seconds for which the run was scheduled.
        started_at: epoch seconds at which it starts.
        date: a night of the past, to be run by hand.
        by_hand: no schedule has made the run.
    """
    scheduled = datetime.datetime.fromtimestamp(scheduled_at, report.zone)
    target = None if date is not None else _next(report, scheduled, days=1 if by_hand else 2)
    if target is None:
        night, due_at = date or scheduled.date(), started_at + report.ready_in_s
    else:
        night, due_at = target.date(), target.timestamp()
        if due_at <= started_at:
            due_at = started_at + report.ready_in_s
    rendering_s = min(RENDERING_S, 0.1 * (due_at - started_at))
    return Due(night, due_at, due_at - rendering_s)


def _next(report: Report, scheduled: datetime.datetime, *, days: int) -> datetime.datetime | None:
    """The next time in so many days that the clock says `ready_by`, unless it is too far away."""
    if report.ready_by is None:
        return None
    hour, minute = map(int, report.ready_by.split(":"))
    for later in range(days):
        day = scheduled.date() + datetime.timedelta(days=later)
        target = datetime.datetime(
            day.year, day.month, day.day, hour, minute, tzinfo=scheduled.tzinfo
        )
        ahead_s = target.timestamp() - scheduled.timestamp()
        if 0 < ahead_s <= FORESIGHT.total_seconds():
            return target
    return None
