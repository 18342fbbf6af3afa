"""`hexprefect emulate`: emulated instances, and with `--cluster` a fleet that is ready to be used.

A fleet is entered where there is something to enter it in: its instances become attached instances
of the Prefect server's work pools, and from there instances of the store; or of the store alone,
where no server is configured. When the fleet ends it is taken out again, and drains.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from hexprefect.commands.prefect_faults import prefect_faults
from hexprefect.commands.store import existing, store_faults, url_of
from hexprefect.errors import HexprefectError
from hexprefect.instances.emulator import Emulator
from hexprefect.instances.emulator.__main__ import API_KEY_VARIABLE, emulator_parser, serve
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceSpec, InstanceView, Store, StoreNotReady
from hexprefect.store.fleet import enter_instance, set_instance_state
from hexprefect.store.opening import open_current
from hexprefect.store.views import instance_views

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

DEPTH = 16
"""Admission depth of an instance, as in the templates of the GPU pools."""

ENDED = "the emulated fleet has ended"
"""Why its instances drain."""

WITHOUT_TEMPLATE = "local"
"""The pool of hardware that has no pool of its own."""


def emulate(arguments: Sequence[str]) -> int:
    """Serve emulated instances until SIGTERM; returns the exit code."""
    parser = emulator_parser("hexprefect emulate")
    parser.add_argument(
        "--no-pools",
        action="store_true",
        help="with --cluster: enter the fleet neither in work pools nor in the store",
    )
    parser.add_argument(
        "--store", help="with --cluster: URL of the store; HEXPREFECT_STORE when left out"
    )
    options = parser.parse_args(arguments)
    if not options.cluster or options.no_pools:
        return serve(options)
    # Loading Prefect takes seconds, in which nothing that listens already would answer.
    from hexprefect.orchestration.pools_apply import read_templates

    templates = frozenset(read_templates())

    def announce(emulators: Sequence[Emulator]) -> AbstractAsyncContextManager[None]:
        return entered(described(emulators, options, templates), store_url=options.store)

    return serve(options, announce=announce)


def described(
    emulators: Sequence[Emulator], options: argparse.Namespace, templates: Collection[str]
) -> dict[str, list[dict[str, Any]]]:
    """Each pool's instances, as its variable `instances` lists them.

    Args:
        options: as of `emulator_parser`.
        templates: the pools that there are templates of.
    """
    pools: dict[str, list[dict[str, Any]]] = {}
    for emulator in emulators:
        hardware = emulator.profile.name
        speed = "" if options.time_scale == 1.0 else f"@{options.time_scale:g}"
        instance = {
            "name": emulator.name,
            "url": emulator.endpoint.url,
            "model": emulator.endpoint.model,
            "profile": f"{hardware}{speed}",
            "speaks": "vllm",
            "slots": options.max_num_seqs,
            "admission_depth": min(DEPTH, options.max_num_seqs),
            "context_tokens": options.max_model_len,
        }
        if API_KEY_VARIABLE in os.environ:
            instance["api_key_secret"] = f"env:{API_KEY_VARIABLE}"
        pool = hardware if hardware in templates else WITHOUT_TEMPLATE
        pools.setdefault(pool, []).append(instance)
    return pools


@asynccontextmanager
async def entered(
    pools: dict[str, list[dict[str, Any]]], *, store_url: str | None
) -> AsyncIterator[None]:
    """Enter a fleet in what is configured, for as long as it serves.

    Args:
        pools: as of `described`.
        store_url: as given on the command line.

    Raises:
        HexprefectError: when the store is not current, or the Prefect server is not there.
    """
    from prefect.settings import PREFECT_API_URL

    store = await asyncio.to_thread(_open_store, store_url)
    api_url = PREFECT_API_URL.value()
    names = [instance["name"] for instances in pools.values() for instance in instances]
    try:
        async with AsyncExitStack() as stack:
            places = []
            if api_url:
                await stack.enter_async_context(_in_pools(pools, store))
                places.append(f"the work pools {', '.join(sorted(pools))} of {api_url}")
            elif store is not None:
                await stack.enter_async_context(_in_store(pools, store))
            if store is not None:
                places.append("the store")
            if places:
                _say(f"{', '.join(names)}: entered in {' and '.join(places)}.")
            else:
                _say("Neither a Prefect server nor a store is configured: entered nowhere.")
            yield
    finally:
        if store is not None:
            await asyncio.to_thread(store.close)


def _open_store(given: str | None) -> Store | None:
    """The store, where there is one; one that was named must be."""
    try:
        with store_faults(url := url_of(given)):
            return open_current(existing(url))
    except StoreNotReady:
        if given is not None or "HEXPREFECT_STORE" in os.environ:
            raise
        return None


@asynccontextmanager
async def _in_pools(
    pools: dict[str, list[dict[str, Any]]], store: Store | None
) -> AsyncIterator[None]:
    """The fleet as attached instances of work pools, and so in the store."""
    from prefect import get_client

    attached: dict[str, list[dict[str, Any]]] = {}
    try:
        with prefect_faults(", or leave the work pools alone with --no-pools"):
            async with get_client() as client:
                await _make_pools(client, set(pools))
                for pool, instances in pools.items():
                    attached[pool] = instances
                    await _attach(client, pool, instances)
                await _synchronise(client, store, pools)
        if store is not None:
            await store.run(lambda tx: _serve_again(tx, pools))
        yield
    finally:
        if attached:
            await _out_of_pools(attached, store)


async def _out_of_pools(pools: dict[str, list[dict[str, Any]]], store: Store | None) -> None:
    """Take the fleet out again; where the server has gone before it, out of the store at least."""
    import httpx
    from prefect import get_client

    try:
        async with get_client() as client:
            for pool, instances in pools.items():
                await _detach(client, pool, instances)
            await _synchronise(client, store, pools)
    except (httpx.HTTPError, HexprefectError) as failure:
        why = failure.problem if isinstance(failure, HexprefectError) else "no answer of Prefect"
        _say(f"The fleet could not be taken out of the work pools {', '.join(pools)}: {why}")
        if store is not None:
            await store.run(lambda tx: _leave(tx, pools))


async def _make_pools(client: PrefectClient, wanted: set[str]) -> None:
    """Create the pools that are missing; an operator's templates stay as they are."""
    from hexprefect.orchestration.pools_apply import apply_pools

    changes = await apply_pools(client, only=wanted, dry_run=True)
    missing = {change.pool for change in changes if change.action == "create"}
    if missing:
        await apply_pools(client, only=missing)


async def _attach(client: PrefectClient, pool: str, instances: Sequence[dict[str, Any]]) -> None:
    """Add instances to those that a pool has, in place of others of the same names."""
    from hexprefect.orchestration.pools import set_pool_instances

    names = {instance["name"] for instance in instances}
    kept = [one for one in await _attached(client, pool) if one.get("name") not in names]
    await set_pool_instances(client, pool, [*kept, *instances])


async def _detach(client: PrefectClient, pool: str, instances: Sequence[dict[str, Any]]) -> None:
    """Take instances out of a pool, but none that has taken over the name of one of them."""
    from hexprefect.orchestration.pools import set_pool_instances

    present = await _attached(client, pool)
    gone = {(instance["name"], instance["url"]) for instance in instances}
    kept = [one for one in present if (one.get("name"), one.get("url")) not in gone]
    if kept != present:
        await set_pool_instances(client, pool, kept)


async def _attached(client: PrefectClient, pool: str) -> list[dict[str, Any]]:
    """What a pool has; nothing where somebody has deleted it."""
    from prefect.exceptions import ObjectNotFound

    from hexprefect.orchestration.pools import template_defaults

    try:
        found = await client.read_work_pool(pool)
    except ObjectNotFound:
        return []
    return list(template_defaults(found.base_job_template).get("instances", []))


async def _synchronise(client: PrefectClient, store: Store | None, ours: Collection[str]) -> None:
    from hexprefect.orchestration.fleet_sync import synchronise_fleet
    from hexprefect.orchestration.pools import PoolMistake

    if store is None:
        return
    try:
        await synchronise_fleet(client, store)
    except PoolMistake as mistake:
        if mistake.pool in ours:
            raise
        _say(str(mistake))  # of somebody else's pool: all others have been read


@asynccontextmanager
async def _in_store(pools: dict[str, list[dict[str, Any]]], store: Store) -> AsyncIterator[None]:
    """The fleet as instances of the store, without pools."""
    specs = [
        InstanceSpec(
            name=instance["name"],
            url=instance["url"],
            model=instance["model"],
            profile=default_profile(instance["profile"]),
            slots=instance["slots"],
            admission_depth=instance["admission_depth"],
            context_tokens=instance["context_tokens"],
            speaks="vllm",
            api_key_block=instance.get("api_key_secret"),
        )
        for instances in pools.values()
        for instance in instances
    ]

    def enter(tx: Any) -> None:
        for spec in specs:
            enter_instance(tx, spec)
            set_instance_state(tx, spec.name, "alive", reason="an emulated fleet")

    await store.run(enter)
    try:
        yield
    finally:
        await store.run(lambda tx: _leave(tx, pools))


def _leave(tx: Any, pools: dict[str, list[dict[str, Any]]]) -> None:
    """Drain what this fleet has in the store, but none that has taken over one of its names."""
    for view in _in_both(tx, pools):
        set_instance_state(tx, view.spec.name, "draining", reason=ENDED)


def _serve_again(tx: Any, pools: dict[str, list[dict[str, Any]]]) -> None:
    """Let serve what an earlier fleet of the same names has left draining, as `_leave` does."""
    for view in _in_both(tx, pools):
        if view.state == "draining" and view.reason == ENDED:
            set_instance_state(tx, view.spec.name, "alive", reason="an emulated fleet")


def _in_both(tx: Any, pools: dict[str, list[dict[str, Any]]]) -> list[InstanceView]:
    ours = {(one["name"], one["url"]) for instances in pools.values() for one in instances}
    views = instance_views(tx.connection)
    return [view for name, view in views.items() if (name, view.spec.url) in ours]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
