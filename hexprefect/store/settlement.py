"""Settling: what has room admits, and what is idle takes over what waits elsewhere.

Transitions change the load of instances and touch them. `settle` then looks at each that was
touched and lets waiting requests start there, by the pure functions of `hexprefect.scheduling`. A
request of the transaction's own process starts at once; one of another process is admitted, and
that process is woken.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from hexprefect.scheduling import Waiting, admit, dispatch, queue_order
from hexprefect.scheduling.reappointment import (
    MOVABLE,
    Movable,
    choose_reappointment,
    wait_for_slot,
)
from hexprefect.store import statements, tables
from hexprefect.store.appointment import enqueue, put_off_late, size_of
from hexprefect.store.changes import Row
from hexprefect.store.engine import read_together
from hexprefect.store.load import InstanceLoad
from hexprefect.store.transaction import Transaction, grant_of

LOOK_AHEAD = 16
"""Waiting requests read beyond the free slots: enough to pass over a few that do not fit."""


def settle(tx: Transaction) -> None:
    """Admit, on every instance whose load changed, the requests that it has room for."""
    touched = [tx.instances[name] for name in sorted(tx.touched & set(tx.instances))]
    serving = [load for load in touched if load.serves]
    roomy = [load for load in serving if load.capacity > load.occupied]
    put_off_late(tx, [load.name for load in roomy if load.waiting])
    queues = _queues(tx, roomy)
    for load in serving:
        _admit_on(tx, load, queues.get(load.name, []))
    # Only what still waits, once every queue has used its own room, is taken elsewhere.
    for load in serving:
        _take_over(tx, load)
    tx.touched.clear()


def _queues(tx: Transaction, loads: Sequence[InstanceLoad]) -> dict[str, list[Row]]:
    """The head of each instance's queue, new requests of this transaction included."""
    queues: dict[str, list[Row]] = {load.name: [] for load in loads if load.waiting > 0}
    for row in tx.changes.new.values():
        if row["state"] == "waiting" and row["instance"] in queues:
            queues[row["instance"]].append(row)
    gone = {row["key"] for row in tx.changes.admitted}
    stored = [load for load in loads if load.waiting > len(queues.get(load.name, ()))]
    if not stored:
        return queues
    reads = [
        (
            statements.HEADS,
            {
                "queue": load.name,
                "most": load.capacity - load.occupied + LOOK_AHEAD + len(gone),
            },
        )
        for load in stored
    ]
    found = read_together(tx.connection, reads, after=tx.write_changes)
    for load, rows in zip(stored, found, strict=True):
        queues[load.name] += [row for row in rows if row["id"] not in gone]
    return queues


def _admit_on(tx: Transaction, load: InstanceLoad, queue: Sequence[Row]) -> None:
    rows = {row["id"]: row for row in queue}
    free = load.capacity - load.occupied
    waiting = sorted(
        (
            Waiting(
                id=row["id"],
                order_key=row["order_key"],
                ready_at=row["ready_at"],
                kv_tokens=row["kv_tokens"],
                passed_over=row["passed_over"],
            )
            for row in rows.values()
        ),
        key=queue_order,
    )
    admission = admit(waiting, free_slots=free, free_kv_tokens=load.free_kv_tokens)
    for request_id in admission.admitted:
        _start(tx, rows[request_id], load)
    for request_id in admission.passed_over:
        tx.changes.pass_over(request_id)


def _start(tx: Transaction, row: Row, load: InstanceLoad) -> None:
    tx.forget_request(row["id"])
    own = row["owner"] == tx.process
    attempt = row["attempt"] + 1
    tx.changes.admit(
        row,
        load.name,
        state="running" if own else "admitted",
        attempt=attempt,
        started_at=tx.now if own else None,
    )
    load.admit(row, now=tx.now)
    if own:
        tx.granted.append(grant_of({**row, "attempt": attempt}, load.name, tx.now))
    else:
        tx.changes.woken.add(row["owner"])


def _take_over(tx: Transaction, load: InstanceLoad) -> None:
    """Fill free slots with what waits elsewhere and would end clearly sooner here."""
    while load.capacity > load.occupied and load.waiting == 0 and load.state == "alive":
        if not any(other.waiting > 0 for other in tx.instances.values() if other is not load):
            return
        candidates = {row["id"]: (row, wait_s) for row, wait_s in _waiting_elsewhere(tx, load)}
        chosen = choose_reappointment(
            [
                Movable(
                    id=request_id,
                    wait_there_s=wait_s,
                    completion_there_s=row["completion_us"] / 1e6,
                    completion_here_s=load.completion_seconds(size_of(row)),
                )
                for request_id, (row, wait_s) in candidates.items()
            ]
        )
        if chosen is None:
            return
        row, wait_s = candidates[chosen]
        _move(tx, row, load, wait_there_s=wait_s)


def _waiting_elsewhere(tx: Transaction, load: InstanceLoad) -> list[tuple[Row, float]]:
    """The first that wait for other instances and fit here, and how long each waits there."""
    tx.write_changes()
    request = tables.requests.c
    gone = {row["key"] for row in tx.changes.admitted}
    stored = tx.connection.execute(
        select(*statements.QUEUE_COLUMNS)
        .where(request.state == "waiting", request.instance != load.name)
        .order_by(request.order_key, request.ready_at, request.id)
        .limit(MOVABLE + len(gone))
    )
    waiting = [
        *(row._asdict() for row in stored if row.id not in gone),
        *(
            row
            for row in tx.changes.new.values()
            if row["state"] == "waiting" and row["instance"] not in (None, load.name)
        ),
    ]
    waiting.sort(key=lambda row: (row["order_key"], row["ready_at"], row["id"]))
    ahead = _waits_for_slots(tx, gone)
    rows: list[tuple[Row, float]] = []
    for row in waiting[:MOVABLE]:
        if load.can_hold(row["kv_tokens"]) and load.fits(row["kv_tokens"]):
            rows.append((row, ahead[row["instance"]]))
        ahead[row["instance"]] += row["work_us"] / 1e6
    return rows


def _waits_for_slots(tx: Transaction, gone: set[str]) -> dict[str, float]:
    """Predicted seconds until each instance admits the first that waits for it."""
    request = tables.requests.c
    waiting_us = {
        name: int(total or 0)
        for name, total in tx.connection.execute(
            select(request.instance, func.sum(request.completion_us))
            .where(request.state == "waiting", request.id.not_in(gone))
            .group_by(request.instance)
        )
    }
    for row in tx.changes.new.values():
        if row["state"] == "waiting" and row["instance"] is not None:
            name = row["instance"]
            waiting_us[name] = waiting_us.get(name, 0) + row["completion_us"]
    return {
        other.name: wait_for_slot(
            queue_delay_s=other.queue_delay(tx.now),
            waiting_s=other.queued_us / 1e6,
            held_completion_s=(other.backlog_us - waiting_us.get(other.name, 0)) / 1e6,
            slots=other.capacity,
        )
        for other in tx.instances.values()
    }


def _move(tx: Transaction, row: Row, load: InstanceLoad, *, wait_there_s: float) -> None:
    """Appoint what waits elsewhere to an instance that was idle, and start it there."""
    other = tx.instances[row["instance"]]
    other.unqueue(row)
    completion_s = load.completion_seconds(size_of(row))
    why = f"{load.name} was idle and would end it sooner than {other.name}"
    # α = 1 over these two times is the comparison that was made: so the move replays, too.
    there_s = wait_there_s + row["completion_us"] / 1e6
    decision = dispatch(
        [load.name, other.name],
        [completion_s, there_s],
        [0.0, 0.0],
        alpha=1.0,
        policy="normalised",
        beta=tx.settings.beta,
    )
    enqueue(tx, row, load)
    tx.changes.decide(row["id"], decision, why=why)
    tx.write_changes()
    _start(tx, row, load)
