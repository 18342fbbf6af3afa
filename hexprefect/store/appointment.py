"""Appointing: a waiting request is dispatched to an instance and enters its queue.

The choice is made by the pure functions of `hexprefect.scheduling` from the load that the
transaction holds, and is recorded with all that it was made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexprefect.scheduling import RequestSize, dispatch, latest_start
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
    completion = [load.completion_seconds(size) for load in eligible]
    settings = tx.settings
    decision = dispatch(
        [load.name for load in eligible],
        completion,
        [load.queue_delay_s for load in eligible],
        alpha=settings.alpha,
        policy=settings.policy,
        beta=settings.beta,
    )
    load = tx.instances[decision.instance]
    chosen_s = completion[[entry.name for entry in eligible].index(decision.instance)]
    enqueue(tx, row, load, chosen_s)
    tx.changes.decide(row["id"], decision, why=why)
    return load.name


def enqueue(tx: Transaction, row: Row, load: InstanceLoad, completion_s: float) -> None:
    """Put a waiting request on the queue of an instance, in its place by urgency.

    Args:
        tx: the transaction.
        row: its columns, as in the table; changed in place.
        load: the instance.
        completion_s: `t_comp` of the request there, in seconds.
    """
    start_by = latest_start(
        ready_at=row["ready_at"], budget_s=row["budget_s"], completion_s=completion_s
    )
    row.update(
        instance=load.name,
        completion_us=round(completion_s * 1e6),
        latest_start=start_by,
        order_key=start_by,
    )
    load.waiting += 1
    load.backlog_us += row["completion_us"]
    load.dirty = True
    tx.touch(load.name)
    tx.changes.appoint(row)


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
