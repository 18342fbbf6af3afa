"""`hexprefect store check`: the laws of the design, verified on a live store.

Each law is one function of a read-only connection and yields what it finds broken, in words that
name the row. The check takes no lock: it reads one snapshot, so that it may run while others work.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, case, func, select

from hexprefect.scheduling import Decision
from hexprefect.store import statements, tables
from hexprefect.store.load import InstanceLoad

CHUNK = 500
"""Ids in one statement: SQLite allows 999 parameters in its older versions."""

RECENT = 5000
"""Rows of history that laws 2, 4, 5 and 7 look at, newest first."""

Key = tuple[float, float, str]
"""`(order_key, ready_at, id)`: the order of a queue."""

GRACE_S = 60.0
"""Seconds after which an expired process must have been cleaned up by somebody."""

TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken law."""

    law: int
    name: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True)
class Law:
    """A law that can be checked on a store."""

    number: int
    name: str
    check: Callable[[Connection, float], Iterator[tuple[str, str]]]


def check_laws(connection: Connection, *, now: float) -> list[Violation]:
    """Every violation found, in the order of the laws; an empty list is a clean store."""
    return [
        Violation(law.number, law.name, subject, detail)
        for law in LAWS
        for subject, detail in law.check(connection, now)
    ]


_request = tables.requests.c

_last_finished = (tables.attempts.c.outcome == "finished") & (
    tables.attempts.c.number == _request.attempt
)


def _later(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and one > other


def _conservation(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    counted = connection.execute(
        select(
            _request.id,
            _request.state,
            _request.attempt,
            func.count(tables.attempts.c.id),
            func.sum(_as_int(_last_finished)),
            func.max(case((_last_finished, tables.attempts.c.ended_at))),
            func.count(func.distinct(tables.attempts.c.number)),
            _request.ended_at,
        )
        .select_from(tables.requests.outerjoin(tables.attempts))
        .group_by(_request.id, _request.state, _request.attempt, _request.ended_at)
    )
    for request, state, attempt, ended, finished, finished_at, distinct, ended_at in counted:
        running = 1 if state in tables.HOLDING_STATES else 0
        # A finished request may be opened again, and then end in another way: but later.
        result = bool(finished) and not (state != "finished" and _later(ended_at, finished_at))
        if ended != distinct:
            yield request, f"an attempt is counted twice ({ended} ended, {distinct} numbers)"
        if ended + running != attempt:
            yield request, f"{attempt} attempts begun, {ended} ended and {running} running"
        if state not in tables.OPEN_STATES and result != (state == "finished"):
            yield request, f"is {state}, its last attempt {'finished' if result else 'did not'}"
        if (ended_at is None) == (state not in tables.OPEN_STATES):
            yield request, f"is {state} and {'has no end' if ended_at is None else 'has ended'}"


def _dependencies(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    rows = connection.execute(
        select(_request.id, _request.needs, _request.submitted_at)
        .where(_request.state != "cancelled")
        .order_by(_request.submitted_at.desc())
        .limit(RECENT)
    ).all()
    finished: dict[str, float] = {}
    wanted = sorted({need for _, needs, _ in rows for need in needs})
    for start in range(0, len(wanted), CHUNK):
        found = connection.execute(
            select(tables.attempts.c.request_id, func.min(tables.attempts.c.ended_at))
            .where(
                tables.attempts.c.request_id.in_(wanted[start : start + CHUNK]),
                tables.attempts.c.outcome == "finished",
            )
            .group_by(tables.attempts.c.request_id)
        )
        finished.update((request, at) for request, at in found)
    for request, needs, submitted_at in rows:
        for need in needs:
            at = finished.get(need)
            if at is None:
                yield request, f"was dispatched while {need}, which it needs, had not finished"
            elif at > submitted_at + TOLERANCE_S:
                yield request, f"was dispatched {at - submitted_at:.3f} s before {need} finished"


def _capacity(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    held = {
        name: (count, int(tokens or 0))
        for name, count, tokens in connection.execute(
            select(_request.instance, func.count(), func.sum(_request.kv_tokens))
            .where(_request.state.in_(tables.HOLDING_STATES))
            .group_by(_request.instance)
        )
    }
    for load in _loads(connection):
        count, tokens = held.get(load.name, (0, 0))
        if count != load.occupied:
            yield load.name, f"{count} requests hold a slot, {load.occupied} slots are reserved"
        if tokens != load.reserved_kv_tokens:
            yield load.name, f"{tokens} KV tokens are held, {load.reserved_kv_tokens} reserved"
        if count > load.depth:
            yield load.name, f"{count} requests hold its {load.depth} slots"
        if load.profile.kv_tokens is not None and tokens > load.profile.kv_tokens:
            yield load.name, f"{tokens} KV tokens are held of {load.profile.kv_tokens}"


def _order(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    for load in _loads(connection):
        if not load.serves or load.occupied >= load.capacity or load.waiting == 0:
            continue
        fitting = connection.execute(
            select(_request.id, _request.kv_tokens)
            .where(_request.instance == load.name, _request.state == "waiting")
            .order_by(_request.order_key, _request.ready_at, _request.id)
            .limit(1)
        ).first()
        if fitting is not None and load.fits(fitting.kv_tokens):
            yield fitting.id, f"waits first in order while {load.name} has room for it"
    yield from _overtaken(connection)


def _overtaken(connection: Connection) -> Iterator[tuple[str, str]]:
    """First attempts that started while one before them in the same queue waited and fitted.

    Only requests that were appointed once and never passed over: for others the order changed.
    """
    once = (
        select(
            tables.decisions.c.request_id, func.min(tables.decisions.c.made_at).label("queued_at")
        )
        .group_by(tables.decisions.c.request_id)
        .having(func.count() == 1)
        .subquery()
    )
    rows = connection.execute(
        select(
            _request.instance,
            _request.id,
            _request.order_key,
            _request.ready_at,
            once.c.queued_at,
            _request.admitted_at,
        )
        .join(once, once.c.request_id == _request.id)
        .where(
            _request.attempt == 1,
            _request.admitted_at.is_not(None),
            _request.passed_over == 0,
        )
        .order_by(_request.admitted_at.desc())
        .limit(RECENT)
    )
    queues: dict[str, list[tuple[float, bool, Key]]] = defaultdict(list)
    for instance, request, order_key, ready_at, queued_at, admitted_at in rows:
        key = (order_key, ready_at, request)
        queues[instance].append((queued_at, False, key))
        queues[instance].append((admitted_at, True, key))
    for instance, events in queues.items():
        for first, started in _inversions(events):
            yield started, f"started on {instance} before {first}, which was before it in order"


def _inversions(events: list[tuple[float, bool, Key]]) -> Iterator[tuple[str, str]]:
    """Pairs `(first in order, started instead)` of one queue's `(time, leaves, key)` events.

    What starts in a commit may have started before what else came in it: commits have one moment.
    """
    waiting: list[Key] = []
    started: set[Key] = set()
    for _, leaves, key in sorted(events, key=lambda event: (event[0], not event[1], event[2])):
        if not leaves:
            heapq.heappush(waiting, key)
            continue
        started.add(key)
        while waiting and waiting[0] in started:
            heapq.heappop(waiting)
        if waiting and waiting[0] < key:
            yield waiting[0][2], key[2]


def _budget(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    rows = connection.execute(
        select(_request.id, _request.budget_s, _request.ready_at, tables.queries.c.deadline)
        .join(tables.queries)
        .order_by(_request.submitted_at.desc())
        .limit(RECENT)
    )
    for request, budget, ready_at, deadline in rows:
        left = deadline - ready_at
        if abs(budget) > abs(left) + TOLERANCE_S or budget * left < 0:
            yield request, f"got a budget of {budget:.3f} s of {left:.3f} s left"


def _nothing_lost(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    known = select(tables.processes.c.id, tables.processes.c.expires_at)
    processes = {row.id: row.expires_at for row in connection.execute(known)}
    rows = connection.execute(
        select(_request.id, _request.owner, _request.state, tables.queries.c.state)
        .join(tables.queries)
        .where(_request.state.in_(tables.OPEN_STATES))
    )
    for request, owner, state, query_state in rows:
        expires = processes.get(owner)
        if expires is None or expires < now - GRACE_S:
            yield request, f"is {state}, held by a process that is gone"
        if query_state != "running":
            yield request, f"is {state}, but its query is {query_state}"


def _one_policy(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    rows = connection.execute(
        select(tables.decisions.c.request_id, tables.decisions.c.record)
        .order_by(tables.decisions.c.id.desc())
        .limit(RECENT)
    )
    for request, record in rows:
        decision = Decision.from_record(record)
        if decision.replayed() != decision.instance:
            yield request, f"went to {decision.instance}, replayed to {decision.replayed()}"


def _idle_is_zero(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    work = {
        name: (waiting, *(int(total or 0) for total in totals))
        for name, waiting, *totals in connection.execute(
            select(
                _request.instance,
                func.sum(_as_int(_request.state == "waiting")),
                func.sum(_request.completion_us),
                func.sum(case((_request.state == "waiting", _request.work_us), else_=0)),
            )
            .where(_request.state.in_(tables.OPEN_STATES))
            .group_by(_request.instance)
        )
    }
    for load in _loads(connection):
        waiting, total, queued = work.get(load.name, (0, 0, 0))
        for kept, name, found in (
            (load.backlog_us, "backlog", total),
            (load.queued_us, "waiting work", queued),
        ):
            if kept != found:
                yield load.name, f"{name} of {kept} µs, its requests sum to {found} µs"
        if load.waiting != waiting:
            yield load.name, f"{waiting} requests wait, {load.waiting} are counted"
        if load.busy_until and not (load.waiting or load.occupied):
            yield load.name, "is idle, and its clock is not at 0"


def _terminal(connection: Connection, now: float) -> Iterator[tuple[str, str]]:
    query = tables.queries.c
    for name, state, reason, ended_at in connection.execute(
        select(query.id, query.state, query.reason, query.ended_at).where(query.state != "running")
    ):
        if ended_at is None:
            yield name, f"is {state} but has no end"
        if state in {"failed", "cancelled"} and not reason:
            yield name, f"is {state} without a reason"
    owners = select(tables.processes.c.id).where(tables.processes.c.expires_at >= now - GRACE_S)
    for name, owner in connection.execute(
        select(query.id, query.owner).where(query.state == "running", query.owner.not_in(owners))
    ):
        yield name, f"is running in process {owner}, which is gone"


def _as_int(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return case((condition, 1), else_=0)


def _loads(connection: Connection) -> list[InstanceLoad]:
    rows = connection.execute(statements.INSTANCES)
    return [InstanceLoad.from_row(row._asdict()) for row in rows]


LAWS = (
    Law(1, "conservation", _conservation),
    Law(2, "dependencies", _dependencies),
    Law(3, "capacity", _capacity),
    Law(4, "order", _order),
    Law(5, "budget", _budget),
    Law(6, "nothing lost", _nothing_lost),
    Law(7, "one policy", _one_policy),
    Law(8, "idle is zero", _idle_is_zero),
    Law(10, "terminal", _terminal),
)
"""Law 9 (determinism) is about the simulator and is a test there."""
