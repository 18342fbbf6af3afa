"""What operators follow: how the fleet does, who is at risk, what has ended. Takes no lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, case, func, or_, select

from hexprefect.store import tables
from hexprefect.store.values import InstanceView
from hexprefect.store.views import instance_views

Record = dict[str, Any]

RISKY_FRACTION = 0.2
"""A running query with less than this fraction of its SLO left is at risk."""

MOST_AT_RISK = 200


@dataclass(frozen=True, slots=True)
class Alpha:
    """The α that dispatch goes by."""

    id: int
    value: float
    policy: str
    chosen_at: float
    reason: str


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """An instance's state and since when."""

    name: str
    pool: str
    state: str
    reason: str | None
    changed_at: float


@dataclass(frozen=True, slots=True)
class Observation:
    """What an observer looks at, in one snapshot."""

    instances: tuple[InstanceSeen, ...]
    alpha: Alpha | None
    leader: str | None
    """The process that has taken part for longest, of those that live: the one that tells."""
    present: bool
    """Whether the process that looks takes part."""


@dataclass(frozen=True, slots=True)
class Window:
    """What ended in a span of time."""

    seconds: float
    answered: int
    failed: int
    met: int
    """Answered in time."""
    latencies_s: tuple[float, ...]
    """Of the answered ones, ascending."""

    @property
    def attainment(self) -> float | None:
        """Fraction of the ended queries that met their SLO."""
        ended = self.answered + self.failed
        return self.met / ended if ended else None

    def percentile_s(self, fraction: float) -> float | None:
        """Of the latencies, by nearest rank."""
        if not self.latencies_s:
            return None
        rank = max(0, -(-round(1000 * fraction * len(self.latencies_s)) // 1000) - 1)
        return self.latencies_s[min(rank, len(self.latencies_s) - 1)]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request at the head of a queue."""

    id: str
    query_id: str
    stage: str
    instance: str | None
    tenant: str
    laxity_s: float
    """Seconds until it should have started; negative once it is late."""
    waited_s: float


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """A tenant's queries: those that run, and those of the window."""

    tenant: str
    running: int
    window: Window


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet at one moment, as `hexprefect top` shows it."""

    at: float
    instances: tuple[InstanceView, ...]
    alpha: Alpha | None
    open_requests: dict[str, int]
    window: Window
    tenants: tuple[TenantLoad, ...]
    waiting: tuple[Waiting, ...]


def newest_alpha(connection: Connection) -> Alpha | None:
    """The newest row of the α history."""
    history = tables.alpha_history.c
    row = connection.execute(
        select(history.id, history.alpha, history.policy, history.chosen_at, history.reason)
        .order_by(history.id.desc())
        .limit(1)
    ).first()
    return None if row is None else Alpha(*row)


def observe(connection: Connection, *, now: float, process: str) -> Observation:
    """Instances, α and who is to tell of changes."""
    instance, known = tables.instances.c, tables.processes.c
    rows = connection.execute(
        select(
            instance.name, instance.pool, instance.state, instance.reason, instance.changed_at
        ).order_by(instance.name)
    )
    living = (
        connection.execute(
            select(known.id).where(known.expires_at > now).order_by(known.joined_at, known.id)
        )
        .scalars()
        .all()
    )
    return Observation(
        instances=tuple(InstanceSeen(*row) for row in rows),
        alpha=newest_alpha(connection),
        leader=living[0] if living else None,
        present=process in living,
    )


def queries_at_risk(
    connection: Connection, *, now: float, most: int = MOST_AT_RISK
) -> list[Record]:
    """Running queries that have little time left, or less than what they have open will take.

    A request that waits still has its predicted seconds before it; one that runs, what is left of
    them. `overdue` says whether the deadline has passed.
    """
    query, request = tables.queries.c, tables.requests.c
    ran_us = case(
        (request.state == "running", 1e6 * (now - func.coalesce(request.started_at, now))),
        else_=0.0,
    )
    left_us = func.max(request.completion_us - ran_us)
    rows = connection.execute(
        select(
            query.id,
            query.tenant,
            query.database,
            query.question,
            query.arrived_at,
            query.deadline,
            query.slo_s,
            func.coalesce(left_us, 0).label("open_us"),
        )
        .select_from(
            tables.queries.outerjoin(
                tables.requests,
                and_(request.query_id == query.id, request.state.in_(tables.OPEN_STATES)),
            )
        )
        .where(query.state == "running")
        .group_by(*(query[name] for name in _NAMED))
        .having(
            or_(
                query.deadline - now < RISKY_FRACTION * query.slo_s,
                query.deadline - now < func.coalesce(left_us, 0) / 1e6,
            )
        )
        .order_by(query.deadline, query.id)
        .limit(most)
    )
    return [
        {
            **{name: row._mapping[name] for name in _NAMED},
            "left_s": round(row.deadline - now, 3),
            "open_s": round(max(0.0, float(row.open_us)) / 1e6, 3),
            "overdue": row.deadline < now,
        }
        for row in rows
    ]


_NAMED = ("id", "tenant", "database", "question", "arrived_at", "deadline", "slo_s")


def ended_queries(connection: Connection, *, after: float, until: float) -> Sequence[RowMapping]:
    """Queries that ended in `(after, until]`: tenant, state, arrival, deadline, end."""
    query = tables.queries.c
    return (
        connection.execute(
            select(
                query.tenant,
                query.database,
                query.state,
                query.arrived_at,
                query.deadline,
                query.ended_at,
            ).where(query.ended_at > after, query.ended_at <= until)
        )
        .mappings()
        .all()
    )


def ended_requests(connection: Connection, *, after: float, until: float) -> Sequence[RowMapping]:
    """Requests that ended in `(after, until]`, with their times and tokens."""
    request = tables.requests.c
    return (
        connection.execute(
            select(
                request.stage,
                request.instance,
                request.state,
                request.ready_at,
                request.admitted_at,
                request.started_at,
                request.ended_at,
                request.completion_us,
                request.attempt,
                request.actual_input_tokens,
                request.actual_output_tokens,
                request.cached_tokens,
                tables.queries.c.tenant,
            )
            .join_from(tables.requests, tables.queries)
            .where(request.ended_at > after, request.ended_at <= until)
        )
        .mappings()
        .all()
    )


def open_requests(connection: Connection) -> dict[str, int]:
    """How many requests wait, are admitted and run."""
    counted = dict.fromkeys(tables.OPEN_STATES, 0)
    for state in tables.OPEN_STATES:
        counted[state] = connection.execute(
            select(func.count()).where(_somewhere(), tables.requests.c.state == state)
        ).scalar_one()
    return counted


def _somewhere() -> ColumnElement[bool]:
    """On any instance or none: true of all requests, said so that the queues' index is used."""
    instance = tables.requests.c.instance
    return or_(instance.in_(select(tables.instances.c.name)), instance.is_(None))


def running_queries(connection: Connection) -> dict[str, int]:
    """How many queries run, by tenant; every enabled tenant is there."""
    query = tables.queries.c
    names = connection.execute(select(tables.tenants.c.name).where(tables.tenants.c.enabled))
    counted = dict.fromkeys(names.scalars(), 0)
    for tenant, count in connection.execute(
        select(query.tenant, func.count()).where(query.state == "running").group_by(query.tenant)
    ):
        counted[tenant] = count
    return counted


def window_of(ended: Sequence[RowMapping], seconds: float) -> Window:
    """The figures of ended queries; cancelled ones count as neither."""
    answered = [row for row in ended if row["state"] == "answered"]
    return Window(
        seconds=seconds,
        answered=len(answered),
        failed=sum(row["state"] == "failed" for row in ended),
        met=sum(row["ended_at"] <= row["deadline"] for row in answered),
        latencies_s=tuple(sorted(row["ended_at"] - row["arrived_at"] for row in answered)),
    )


def first_waiting(connection: Connection, *, now: float, most: int = 10) -> tuple[Waiting, ...]:
    """The waiting requests that should start soonest, over all queues."""
    request = tables.requests.c
    rows = connection.execute(
        select(
            request.id,
            request.query_id,
            request.stage,
            request.instance,
            tables.queries.c.tenant,
            request.latest_start,
            request.ready_at,
        )
        .join_from(tables.requests, tables.queries)
        .where(_somewhere(), request.state == "waiting")
        .order_by(request.latest_start, request.id)
        .limit(most)
    )
    return tuple(
        Waiting(
            id=row.id,
            query_id=row.query_id,
            stage=row.stage,
            instance=row.instance,
            tenant=row.tenant,
            laxity_s=row.latest_start - now,
            waited_s=max(0.0, now - row.ready_at),
        )
        for row in rows
    )


def fleet_state(
    connection: Connection, *, now: float, window_s: float = 600.0, most_waiting: int = 10
) -> FleetState:
    """Everything that `hexprefect top` shows, in one snapshot."""
    ended = ended_queries(connection, after=now - window_s, until=now)
    running = running_queries(connection)
    tenants = sorted({*running, *(row["tenant"] for row in ended)})
    return FleetState(
        at=now,
        instances=tuple(instance_views(connection).values()),
        alpha=newest_alpha(connection),
        open_requests=open_requests(connection),
        window=window_of(ended, window_s),
        tenants=tuple(
            TenantLoad(
                tenant,
                running.get(tenant, 0),
                window_of([row for row in ended if row["tenant"] == tenant], window_s),
            )
            for tenant in tenants
        ),
        waiting=first_waiting(connection, now=now, most=most_waiting),
    )
