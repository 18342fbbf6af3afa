"""Leases: a process's right to run what it was given, kept alive by one heartbeat a process.

A process that stops beating is taken for dead when its lease has expired. Whatever it held is then
ended with that reason, and its instances' slots go to others in the same transaction (law 6). When
its flow run is started again, the query is resumed and what had finished is not run again.
"""

from __future__ import annotations

from sqlalchemy import delete, select, update

from hexprefect.store import tables
from hexprefect.store.processes import DIED, LEASE_S, enter_process
from hexprefect.store.settlement import settle
from hexprefect.store.transaction import Transaction
from hexprefect.store.transitions import appoint_unappointed, close_open

__all__ = ["DIED", "LEASE_S", "beat", "expire", "join", "leave"]


def join(tx: Transaction, *, lease_s: float = LEASE_S) -> None:
    """Enter this process, so that it may hold leases."""
    beat(tx, lease_s=lease_s)


def beat(tx: Transaction, *, lease_s: float = LEASE_S) -> bool:
    """Prolong this process's leases; `False` when it was not known and has joined (anew)."""
    changed = tx.connection.execute(
        update(tables.processes)
        .where(tables.processes.c.id == tx.process)
        .values(expires_at=tx.now + lease_s)
    )
    if changed.rowcount:
        return True
    enter_process(tx, lease_s=lease_s)
    return False


def leave(tx: Transaction) -> None:
    """Give up everything this process still holds, and be gone."""
    _release_all(tx, tx.process, why="the process that ran it was stopped")
    tx.connection.execute(delete(tables.processes).where(tables.processes.c.id == tx.process))


def expire(tx: Transaction) -> tuple[str, ...]:
    """End what processes held whose lease has expired; their ids.

    Any process may call this at any time. Requests that found no instance get another try, too, and
    instances with room look for work: one may have fallen behind while another was idle.
    """
    dead = tx.connection.execute(
        select(tables.processes.c.id).where(tables.processes.c.expires_at < tx.now)
    ).scalars()
    ids = tuple(dead.all())
    for process in ids:
        _release_all(tx, process, why=DIED)
        tx.connection.execute(delete(tables.processes).where(tables.processes.c.id == process))
    appoint_unappointed(tx)
    for load in tx.instances.values():
        if load.serves and load.occupied < load.capacity:
            tx.touch(load.name)
    return ids


def _release_all(tx: Transaction, process: str, *, why: str) -> None:
    settle(tx)
    tx.flush()
    rows = tx.connection.execute(
        select(tables.requests).where(
            tables.requests.c.owner == process,
            tables.requests.c.state.in_(tables.OPEN_STATES),
        )
    )
    for row in rows.all():
        close_open(tx, row._asdict(), state="failed", outcome="lost", error=why)
    tx.connection.execute(
        update(tables.queries)
        .where(tables.queries.c.owner == process, tables.queries.c.state == "running")
        .values(state="failed", reason=why, ended_at=tx.now)
    )
    tx.forget_queries()
