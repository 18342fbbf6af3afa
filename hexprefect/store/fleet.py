"""The instances in the store: entered, changed, drained, found dead, and removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import delete, insert, select, update

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.load import profile_columns
from hexprefect.store.profiles import forget_learned
from hexprefect.store.settlement import settle
from hexprefect.store.transaction import Transaction
from hexprefect.store.transitions import appoint_unappointed, move
from hexprefect.store.values import InstanceSpec, InstanceState, UnknownInstance
from hexprefect.store.words import check_name

_PAUSED = ("work pool ", " is paused")
_LEFT = "no longer in pool "
MOST = 1_000_000_000
"""Of anything that an instance has: its columns hold no more than twice that."""


def enter_instance(tx: Transaction, spec: InstanceSpec) -> bool:
    """Add an instance, or change the description of one; whether anything changed.

    What runs there stays, and what waits, unless the instance cannot hold it any more; the change
    counts from the next dispatch on.

    Raises:
        CallerMistake: when it has no slot to give, or a number or a name does not fit.
    """
    check_name("instance", spec.name, most=200, least=1)
    for name in ("slots", "admission_depth", "context_tokens"):
        number = getattr(spec, name)
        if number is not None and not 1 <= number <= MOST:
            raise CallerMistake(
                f"Instance {spec.name!r} has {name}={number}.",
                remedy=f"It must be at least 1, and at most {MOST:,}.",
            )
    check_names(spec)
    columns = _columns(spec)
    known = tx.connection.execute(
        select(tables.instances).where(tables.instances.c.name == spec.name)
    ).first()
    if known is not None and all(known._mapping[key] == columns[key] for key in columns):
        return False
    settle(tx)
    tx.flush()
    if known is None:
        tx.connection.execute(
            insert(tables.instances),
            [
                {
                    "name": spec.name,
                    **columns,
                    "state": "alive",
                    "changed_at": tx.now,
                    "held_prefixes": [],
                }
            ],
        )
    else:
        tx.connection.execute(
            update(tables.instances).where(tables.instances.c.name == spec.name).values(**columns)
        )
        if not _same_engine(known._mapping, columns):
            forget_learned(tx, spec.name)
    tx.read_instances_anew()
    tx.touch(spec.name)
    if known is not None:
        load = tx.instances[spec.name]
        _move_queue(tx, spec.name, why=f"{spec.name} cannot hold it any more", stays=load.can_hold)
    appoint_unappointed(tx)
    return True


def check_names(spec: InstanceSpec) -> None:
    """Refuse a description whose names the store cannot keep.

    Raises:
        CallerMistake: a name is too long, or has a character that a database cannot keep.
    """
    check_name("instance", spec.name, most=200)
    check_name("work pool", spec.pool, most=200)
    check_name("model", spec.model, most=300)
    check_name("block", spec.api_key_block, most=200)


def set_instance_state(
    tx: Transaction, name: str, state: InstanceState, *, reason: str | None = None
) -> None:
    """Alive, suspect, draining or dead.

    The queue of an instance that drains or is dead moves to the others in this transaction. What
    runs on it is left to the processes that run it: they see the connection break, or the answer.

    Raises:
        UnknownInstance: when there is none of this name.
    """
    load = tx.instances.get(name)
    if load is None:
        raise UnknownInstance(
            f"No instance {name!r}.", remedy=f"Known: {', '.join(tx.instances) or 'none'}."
        )
    if load.state != state or load.reason != reason:
        load.state, load.reason, load.changed_at, load.dirty = state, reason, tx.now, True
    if state in {"draining", "dead"}:
        # Unloaded engines forget their cache; a restarted one must not be preferred for it.
        load.held = () if state == "dead" else load.held
        _move_queue(tx, name, why=f"{name} is {state}")
    else:
        tx.touch(name)
        appoint_unappointed(tx)


def synchronise(
    tx: Transaction, specs: Iterable[InstanceSpec], *, pool: str, paused: bool = False
) -> tuple[str, ...]:
    """Make the instances of one pool be exactly `specs`; those no longer in it drain.

    One that drained for a pool's sake, this one's or the one that it was in before, serves again
    when it is in the pool, and the pool is not `paused`. One that an operator drains is left to
    drain.

    Returns:
        The names that changed.
    """
    wanted = {spec.name: spec for spec in specs}
    changed = [name for name, spec in wanted.items() if enter_instance(tx, spec)]
    stored = tx.connection.execute(
        select(tables.instances.c.name, tables.instances.c.state, tables.instances.c.reason).where(
            tables.instances.c.pool == pool
        )
    ).all()
    for name, state, reason in stored:
        if name not in wanted and state != "draining":
            set_instance_state(tx, name, "draining", reason=left_reason(pool))
            changed.append(name)
        elif name in wanted and state == "draining" and not paused:
            if not is_for_a_pools_sake(reason):
                continue
            set_instance_state(tx, name, "alive", reason=f"in pool {pool} again")
            changed.append(name)
    return tuple(changed)


def paused_reason(pool: str) -> str:
    """Why the instances of a paused pool drain."""
    return f"{_PAUSED[0]}{pool}{_PAUSED[1]}"


def left_reason(pool: str) -> str:
    """Why an instance drains that its pool does not describe any more."""
    return f"{_LEFT}{pool}"


def is_for_a_pools_sake(reason: str | None) -> bool:
    """Whether an instance drains because some pool is paused, or has lost it."""
    begin, end = _PAUSED
    said = reason or ""
    return said.startswith(_LEFT) or (said.startswith(begin) and said.endswith(end))


def remove_instance(tx: Transaction, name: str) -> bool:
    """Forget an instance that nothing runs on and no request remembers; whether it could be."""
    set_instance_state(tx, name, "draining", reason="being removed")
    settle(tx)
    tx.flush()
    remembered = tx.connection.execute(
        select(tables.requests.c.id).where(tables.requests.c.instance == name).limit(1)
    ).first()
    if remembered is not None:
        return False
    history = tables.profile_history
    tx.connection.execute(delete(history).where(history.c.instance == name))
    tx.connection.execute(delete(tables.instances).where(tables.instances.c.name == name))
    tx.read_instances_anew()
    return True


def _move_queue(
    tx: Transaction, name: str, *, why: str, stays: Callable[[int], bool] | None = None
) -> None:
    tx.flush()
    rows = tx.connection.execute(
        select(tables.requests)
        .where(tables.requests.c.instance == name, tables.requests.c.state == "waiting")
        .order_by(tables.requests.c.order_key, tables.requests.c.ready_at, tables.requests.c.id)
    )
    for row in rows.all():
        if stays is None or not stays(row.kv_tokens):
            move(tx, row._asdict(), why=why)


def _same_engine(known: Mapping[Any, Any], columns: Mapping[str, Any]) -> bool:
    """Whether what was learned of an instance still holds for what it is now said to be.

    Its KV memory may change: how long a token takes does not depend on it.
    """
    before, after = ({**of["profile"], "kv_tokens": None} for of in (known, columns))
    return before == after and all(known[key] == columns[key] for key in ("model", "learn_profile"))


def _columns(spec: InstanceSpec) -> dict[str, Any]:
    return {
        "pool": spec.pool,
        "url": spec.url,
        "model": spec.model,
        "speaks": spec.speaks,
        "api_key_block": spec.api_key_block,
        "profile": profile_columns(spec.profile),
        "slots": spec.slots,
        "admission_depth": spec.admission_depth,
        "context_tokens": spec.context_tokens,
        "learn_profile": spec.learn_profile,
    }
