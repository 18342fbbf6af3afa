"""Work pools → store: the instances that Prefect's work pools describe become the fleet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from prefect.client.orchestration import PrefectClient
from sqlalchemy import select

from hexprefect.errors import CallerMistake
from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.pools import PoolInstance, PoolMistake, read_pool_instances
from hexprefect.orchestration.serving_lease import is_served
from hexprefect.store import InstanceSpec, Store, tables
from hexprefect.store.fleet import (
    check_names,
    is_for_a_pools_sake,
    paused_reason,
    set_instance_state,
    synchronise,
)
from hexprefect.store.transaction import Transaction
from hexprefect.store.views import instance_views

NOT_SERVED = "no flow run serves it any more"


def spec_of_pool_instance(instance: PoolInstance) -> InstanceSpec:
    """The store's description of an instance that a pool describes.

    Raises:
        PoolMistake: there is no such hardware profile, or a name is too long for the store.
    """
    try:
        spec = _spec(instance)
        check_names(spec)
    except CallerMistake as mistake:
        raise PoolMistake(
            f"The work pool {instance.pool!r} describes {instance.name!r} in a way that cannot be "
            f"used: {mistake.problem}",
            remedy=mistake.remedy,
            pool=instance.pool,
        ) from mistake
    return spec


def _spec(instance: PoolInstance) -> InstanceSpec:
    return InstanceSpec(
        name=instance.name,
        pool=instance.pool,
        url=instance.url,
        model=instance.model,
        speaks=instance.speaks,
        profile=default_profile(instance.profile),
        slots=instance.slots,
        admission_depth=instance.admission_depth,
        api_key_block=instance.api_key_secret,
        context_tokens=instance.context_tokens,
        learn_profile=instance.learn_profile,
    )


async def synchronise_fleet(client: PrefectClient, store: Store) -> tuple[str, ...]:
    """Read the pools and make the store's fleet agree; counts from the next dispatch on.

    Instances of a paused pool drain; those of pools that are gone drain, too. Instances that were
    entered without a pool are left alone. Launched ones enter and leave with the flow run that
    serves them; one whose flow run is gone without a word is dead.

    Returns:
        The names of the instances that changed.

    Raises:
        PoolMistake: naming the pool and the remedy; the other pools have been synchronised.
    """
    mistakes: list[PoolMistake] = []
    found = await read_pool_instances(client, on_mistake=mistakes.append)
    by_pool: dict[str, list[PoolInstance]] = defaultdict(list)
    described: dict[str, InstanceSpec] = {}
    for instance in found:
        by_pool[instance.pool].append(instance)
        try:
            described[instance.name] = spec_of_pool_instance(instance)
        except PoolMistake as mistake:
            mistake.paused = instance.paused
            mistakes.append(mistake)

    def apply(tx: Transaction) -> tuple[str, ...]:
        changed: list[str] = []
        instance = tables.instances.c
        known = tx.connection.execute(
            select(instance.pool).where(instance.pool != "").distinct()
        ).scalars()
        # A pool that cannot be read is not an empty one: its instances stay as they are.
        unreadable = {mistake.pool for mistake in mistakes}
        for pool in sorted({*known.all(), *by_pool} - unreadable):
            members = by_pool.get(pool, [])
            attached = [described[member.name] for member in members if member.launch is None]
            launched = _launched(tx, [member.name for member in members if member.launch])
            specs = [*attached, *launched]
            paused = any(member.paused for member in members)
            changed += synchronise(tx, specs, pool=pool, paused=paused)
            for member in members:
                load = tx.instances.get(member.name)
                if load is None or not member.paused:
                    continue
                if load.serves if member.launch else load.state != "draining":
                    set_instance_state(tx, member.name, "draining", reason=paused_reason(pool))
                    changed.append(member.name)
        for mistake in mistakes:
            if mistake.paused:
                changed += _pause(tx, mistake.pool)
        return tuple(changed)

    changed = await store.run(apply)
    if mistakes:
        raise mistakes[0]
    return changed


def _pause(tx: Transaction, pool: str) -> list[str]:
    """Drain what the store has of a paused pool that cannot be read: a pause needs no reading."""
    serving = [
        view.spec.name
        for view in instance_views(tx.connection).values()
        if view.spec.pool == pool and view.state in ("alive", "suspect")
    ]
    for name in serving:
        set_instance_state(tx, name, "draining", reason=paused_reason(pool))
    return serving


def _launched(tx: Transaction, names: Iterable[str]) -> list[InstanceSpec]:
    """The launched instances of a pool that are to be what the pool says: in it, paused or not.

    They are as the store has them: on which machine one listens, its flow run alone knows. One that
    drains because that flow run, or an operator, says so is left to do it.
    """
    views = instance_views(tx.connection)
    found: list[InstanceSpec] = []
    for name in names:
        view = views.get(name)
        if view is None:
            continue
        if view.state in ("alive", "suspect") and not is_served(tx.connection, name, now=tx.now):
            set_instance_state(tx, name, "dead", reason=NOT_SERVED)
        if view.state != "draining" or is_for_a_pools_sake(view.reason):
            found.append(view.spec)
    return found
