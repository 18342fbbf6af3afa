"""Appointing: a waiting request is dispatched to an instance and enters its queue.

The choice is made by the pure functions of `hexprefect.scheduling` from the load that the
transaction holds, and is recorded with all that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from hexprefect.scheduling import RequestSize, dispatch, latest_start
from hexprefect.scheduling.delay import with_delays_beside
from hexprefect.scheduling.order import last_chance, order_key, put_off
from hexprefect.store import tables
from hexprefect.store.changes import Row
from hexprefect.store.load import InstanceLoad
from hexprefect.store.transaction import Transaction


def appoint(
    tx: Transaction, row: Row, *, why: str, avoid: frozenset[str] = frozenset()
) -> str | None:
    """Dispatch a waiting request that is on no instance's queue.

    Args:
        tx: the transaction.
        row: its columns, as in the table; changed in place.
        why: recorded with the decision.
        avoid: instances to use only when there is no other.

    Returns:
        The instance's name, or `None` when none can take it now.
    """
    size = size_of(row)
    eligible = _eligible(tx, row["kv_tokens"], avoid)
    if not eligible:
        row.update(instance=None, completion_us=0)
        tx.changes.appoint(row)
        return None
    settings = tx.settings
    decision = dispatch(
        [load.name for load in eligible],
        with_delays_beside(
            [load.completion_seconds(size) for load in eligible],
            [load.coefficients for load in eligible],
            size.input_tokens,
            size.output_tokens,
            [load.cached_tokens(size) for load in eligible],
            [load.beside for load in eligible],
            [load.stall_seconds for load in eligible],
        ),
        [load.queue_delay(tx.now) for load in eligible],
        alpha=settings.alpha,
        policy=settings.policy,
        beta=settings.beta,
    )
    enqueue(tx, row, tx.instances[decision.instance])
    tx.changes.decide(row["id"], decision, why=why)
    return decision.instance


def enqueue(tx: Transaction, row: Row, load: InstanceLoad) -> None:
    """Put a waiting request on the queue of an instance, in its place in the order.

    Args:
        tx: the transaction.
        row: its columns, as in the table; changed in place.
        load: the instance.
    """
    size = size_of(row)
    completion_s = load.completion_seconds(size)
    row.update(
        instance=load.name,
        completion_us=round(completion_s * 1e6),
        work_us=round(load.work_seconds(size) * 1e6),
        latest_start=latest_start(
            ready_at=row["ready_at"], budget_s=row["budget_s"], completion_s=completion_s
        ),
    )
    row["order_key"] = _order_key(tx, row, completion_s)
    _put_off_if_late(tx, row)
    load.queue(row, now=tx.now)
    load.hold(row["prefix"])
    tx.touch(load.name)
    tx.changes.appoint(row)


def _order_key(tx: Transaction, row: Row, completion_s: float) -> float:
    return order_key(
        tx.settings.order,
        ready_at=row["ready_at"],
        arrived_at=row["ready_at"],
        deadline=row["deadline"],
        budget_s=row["budget_s"],
        completion_s=completion_s,
        remaining_s=row["remaining_s"],
    )


def _put_off_if_late(tx: Transaction, row: Row) -> None:
    """Overload: what cannot be in time any more lets those that can go first, for a while.

    Its key has just been made anew, so that what was put off on another instance is again, too.
    """
    penalty = tx.settings.late_penalty
    if penalty is None:
        return
    remaining_s = tx.settings.stretch * row["remaining_s"]
    if row["late"] or tx.now > last_chance(deadline=row["deadline"], remaining_s=remaining_s):
        query = tx.query(row["query_id"])
        assert query is not None
        row["late"] = True
        row["order_key"] = put_off(row["order_key"], slo_s=query["slo_s"], penalty=penalty)


def size_of(row: Mapping[str, Any]) -> RequestSize:
    """What a request asks of an instance, from its row."""
    return RequestSize(
        input_tokens=row["input_tokens"],
        output_tokens=row["predicted_output_tokens"],
        prefix=tuple((key, tokens) for key, tokens in row["prefix"]),
    )


def _eligible(tx: Transaction, kv_tokens: int, avoid: frozenset[str]) -> list[InstanceLoad]:
    """The best of those that could hold it: alive before suspect, then none that is to be avoided.

    Draining and dead ones are given nothing.
    """
    able = [load for load in tx.instances.values() if load.can_hold(kv_tokens)]
    for wanted in (
        [load for load in able if load.state == "alive" and load.name not in avoid],
        [load for load in able if load.state == "alive"],
        [load for load in able if load.state == "suspect" and load.name not in avoid],
        [load for load in able if load.state == "suspect"],
    ):
        if wanted:
            return wanted
    return []


def put_off_late(tx: Transaction, instances: Sequence[str]) -> None:
    """Put off what has become late while it waited in these queues; see `order.put_off`."""
    settings = tx.settings
    if settings.late_penalty is None or not instances:
        return
    tx.write_changes()
    request = tables.requests.c
    slo_s = select(tables.queries.c.slo_s).where(tables.queries.c.id == request.query_id)
    tx.connection.execute(
        update(tables.requests)
        .where(
            request.instance.in_(instances),
            request.state == "waiting",
            request.late.is_(False),
            request.deadline - settings.stretch * request.remaining_s < tx.now,
        )
        .values(
            late=True,
            order_key=request.order_key + settings.late_penalty * slo_s.scalar_subquery(),
        )
    )
