"""Work pools → store: the instances that Prefect's work pools describe become the fleet."""

from __future__ import annotations

from collections import defaultdict

from prefect.client.orchestration import PrefectClient
from sqlalchemy import select

from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.pools import PoolInstance, PoolMistake, read_pool_instances
from hexprefect.store import InstanceSpec, Store, tables
from hexprefect.store.fleet import set_instance_state, synchronise
from hexprefect.store.transaction import Transaction


def spec_of_pool_instance(instance: PoolInstance) -> InstanceSpec:
    """The store's description of an instance that a pool describes."""
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
    )


async def synchronise_fleet(client: PrefectClient, store: Store) -> tuple[str, ...]:
    """Read the pools and make the store's fleet agree; counts from the next dispatch on.

    Instances of a paused pool drain; those of pools that are gone drain, too. Instances that were
    entered without a pool are left alone.

    Returns:
        The names of the instances that changed.

    Raises:
        PoolMistake: naming the pool and the remedy; the other pools have been synchronised.
    """
    mistakes: list[PoolMistake] = []
    found = await read_pool_instances(client, on_mistake=mistakes.append)
    by_pool: dict[str, list[PoolInstance]] = defaultdict(list)
    for instance in found:
        by_pool[instance.pool].append(instance)

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
            changed += synchronise(tx, map(spec_of_pool_instance, members), pool=pool)
            for member in members:
                if member.paused:
                    set_instance_state(
                        tx, member.name, "draining", reason=f"work pool {pool} is paused"
                    )
        return tuple(changed)

    changed = await store.run(apply)
    if mistakes:
        raise mistakes[0]
    return changed
