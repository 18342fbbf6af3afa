"""What others have on an instance, as its server tells it: seen by one process, used by all."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import update

from hexprefect.scheduling.foreign import foreign_work_seconds, typical_size
from hexprefect.scheduling.prediction import ANY_DATABASE
from hexprefect.store import tables
from hexprefect.store.transaction import Transaction


def see_foreign(tx: Transaction, seen: Mapping[str, tuple[int, int]]) -> None:
    """Reckon with the requests of others from now on; an instance that is gone is passed over.

    They enter the queue delay with which dispatch compares instances, and take slots.

    Args:
        seen: instance → requests of others that run there and that wait there.
    """
    typical = typical_size(
        history for (_, database), history in tx.history.items() if database == ANY_DATABASE
    )
    for name in sorted(set(seen) & set(tx.instances)):
        running, waiting = seen[name]
        load = tx.instances[name]
        work_s = foreign_work_seconds(running + waiting, typical, load.profile)
        had_room_for = load.capacity
        load.foreign, load.foreign_us = running + waiting, round(work_s * 1e6)
        tx.connection.execute(
            update(tables.instances)
            .where(tables.instances.c.name == name)
            .values(
                foreign_running=running,
                foreign_waiting=waiting,
                foreign_us=load.foreign_us,
                foreign_seen_at=tx.now,
            )
        )
        if load.capacity > had_room_for:
            tx.touch(name)
