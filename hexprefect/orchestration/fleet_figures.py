"""What the fleet did in a span of time: by instance, tenant, stage and hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, RowMapping

from hexprefect.store.statistics import Window, ended_queries, ended_requests, window_of
from hexprefect.store.views import instance_views

BINS = 48
"""Points of a curve over time."""


@dataclass(frozen=True, slots=True)
class InstanceFigures:
    """Of one instance."""

    instance: str
    pool: str
    finished: int
    not_finished: int
    busy_s: float
    """Seconds that requests ran there, summed: two at once count twice."""
    utilisation: float
    """Of the span, the part in which at least one request ran."""
    waited_p95_s: float | None
    ran_over_predicted: float | None
    """Median of the seconds a request ran over those predicted."""
    busy_over_time: tuple[float, ...]
    """Requests on it, on average, in each part of the span."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Of one stage: what it cost."""

    stage: str
    requests: int
    ran_s: float
    input_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class TenantFigures:
    """Of one tenant."""

    tenant: str
    answered: int
    failed: int
    attainment: float | None
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """Of all."""

    since: float
    until: float
    queries: int
    requests: int
    whole: TenantFigures
    instances: tuple[InstanceFigures, ...]
    tenants: tuple[TenantFigures, ...]
    stages: tuple[StageFigures, ...]
    waiting_over_time: tuple[float, ...]
    """Requests that waited, on average, in each part of the span."""

    def as_record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """In one sentence."""
        attainment = self.whole.attainment
        met = "" if attainment is None else f", {100 * attainment:.1f} % in time"
        return f"{self.queries} queries and {self.requests} requests ended{met}"


def read_figures(connection: Connection, since: float, until: float) -> FleetFigures:
    """Read the figures of `(since, until]`, both in epoch seconds."""
    queries = ended_queries(connection, after=since, until=until)
    requests = ended_requests(connection, after=since, until=until)
    ran = [row for row in requests if row["state"] == "finished" and row["started_at"] is not None]
    pools = {name: view.spec.pool for name, view in instance_views(connection).items()}
    by_instance = _grouped(requests, lambda row: row["instance"])
    names = sorted({*pools, *(name for name in by_instance if name)})
    span = (since, until)
    return FleetFigures(
        since=since,
        until=until,
        queries=len(queries),
        requests=len(requests),
        whole=_tenant("all", queries, until - since),
        instances=tuple(
            _instance(name, pools.get(name, ""), by_instance.get(name, []), span) for name in names
        ),
        tenants=tuple(
            _tenant(name, rows, until - since)
            for name, rows in sorted(_grouped(queries, lambda row: row["tenant"]).items())
        ),
        stages=tuple(
            _stage(name, rows)
            for name, rows in sorted(_grouped(ran, lambda row: row["stage"]).items())
        ),
        waiting_over_time=occupancy_over_time(
            [(row["ready_at"], row["started_at"]) for row in ran], since, until
        ),
    )


def occupancy_over_time(
    intervals: Sequence[tuple[float, float]], since: float, until: float, *, bins: int = BINS
) -> tuple[float, ...]:
    """How many intervals cover each part of a span, on average over the part.

    Args:
        intervals: of epoch seconds; what lies outside of the span does not count.
        since, until: the span.
        bins: parts of equal length.
    """
    edges = np.linspace(since, until, bins + 1)
    width = (until - since) / bins
    if not intervals or width <= 0:
        return (0.0,) * bins
    begin, end = np.clip(np.array(intervals, dtype=float), since, until).T
    # Seconds that intervals cover before each edge; what a part holds is the difference.
    covered = np.array([np.clip(edge - begin, 0.0, end - begin).sum() for edge in edges])
    return tuple(float(value) for value in np.diff(covered) / width)


def union_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Seconds that at least one of the intervals covers."""
    total, reached = 0.0, -float("inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _instance(
    name: str, pool: str, rows: Sequence[RowMapping], span: tuple[float, float]
) -> InstanceFigures:
    since, until = span
    ran = [row for row in rows if row["state"] == "finished" and row["started_at"] is not None]
    intervals = [(max(since, row["started_at"]), row["ended_at"]) for row in ran]
    ratios = [
        (row["ended_at"] - row["started_at"]) / (row["completion_us"] / 1e6)
        for row in ran
        if row["completion_us"] > 0
    ]
    waited = [max(0.0, row["started_at"] - row["ready_at"]) for row in ran]
    return InstanceFigures(
        instance=name,
        pool=pool,
        finished=len(ran),
        not_finished=len(rows) - len(ran),
        busy_s=sum(end - begin for begin, end in intervals),
        utilisation=union_s(intervals) / (until - since),
        waited_p95_s=float(np.percentile(waited, 95)) if waited else None,
        ran_over_predicted=float(np.median(ratios)) if ratios else None,
        busy_over_time=occupancy_over_time(intervals, since, until),
    )


def _tenant(name: str, rows: Sequence[RowMapping], seconds: float) -> TenantFigures:
    window: Window = window_of(rows, seconds)
    return TenantFigures(
        tenant=name,
        answered=window.answered,
        failed=window.failed,
        attainment=window.attainment,
        p50_s=window.percentile_s(0.5),
        p95_s=window.percentile_s(0.95),
    )


def _stage(name: str, rows: Sequence[RowMapping]) -> StageFigures:
    return StageFigures(
        stage=name,
        requests=len(rows),
        ran_s=sum(row["ended_at"] - row["started_at"] for row in rows),
        input_tokens=sum(row["actual_input_tokens"] or 0 for row in rows),
        cached_tokens=sum(row["cached_tokens"] or 0 for row in rows),
        output_tokens=sum(row["actual_output_tokens"] or 0 for row in rows),
    )


def _grouped(
    rows: Sequence[RowMapping], key: Callable[[RowMapping], Any]
) -> dict[Any, list[RowMapping]]:
    found: dict[Any, list[RowMapping]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found
