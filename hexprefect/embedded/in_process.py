"""Asking without any server: this process is the flow, the queue and the worker in one."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from hexprefect.embedded.folders import Folders
from hexprefect.embedded.local_fleet import SCHEMA_TOKENS, local_fleet, prefer_the_fast
from hexprefect.embedded.prefect_server import prefect_server
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.store import InstanceSpec, InstanceView, Store, upgrade
from hexprefect.store.fleet import enter_instance, set_instance_state
from hexprefect.store.transaction import Transaction
from hexprefect.store.views import instance_views

PROBE_TIMEOUT_S = 3.0


def configured_api_url() -> str | None:
    """The Prefect server that the user has configured, by variable or by profile.

    Read without importing Prefect, whose settings are fixed when it is imported.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    home = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    try:
        profiles = tomllib.loads((home / "profiles.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):
        return None
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active", "")
    url = profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL")
    return str(url) if url else None


def prepare_environment(folders: Folders, store_url: str | None) -> str:
    """Point Prefect and the store at the stack's own folders. Call it before Prefect is imported.

    Returns:
        The URL of the store.
    """
    url = store_url or os.environ.get("HEXPREFECT_STORE") or folders.store_url
    os.environ["HEXPREFECT_STORE"] = url
    os.environ.setdefault("PREFECT_HOME", str(folders.prefect_home))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("DO_NOT_TRACK", "1")
    return url


@asynccontextmanager
async def own_prefect_server(folders: Folders) -> AsyncIterator[str]:
    """A Prefect server for this process alone, known to it through the environment."""
    home = Path(os.environ["PREFECT_HOME"])
    async with prefect_server(home, folders.logs) as api_url:
        os.environ["PREFECT_API_URL"] = api_url
        yield api_url


@asynccontextmanager
async def serving_instances(store_url: str, *, model: str) -> AsyncIterator[tuple[str, ...]]:
    """Instances to ask: those in the store that answer, or else two local ones of our own.

    Yields:
        Their names.
    """
    await asyncio.to_thread(upgrade, store_url)
    store = await asyncio.to_thread(Store, store_url)
    try:
        answering = await _answering(store)
        if answering:
            yield answering
            return
        os.environ.setdefault("HEXPREFECT_SCHEMA_TOKENS", str(SCHEMA_TOKENS))
        async with local_fleet(model=model) as specs:
            await store.run(lambda tx: _enter(tx, specs))
            try:
                yield tuple(spec.name for spec in specs)
            finally:
                names = [spec.name for spec in specs]
                why = "stopped with the command that started it"
                await asyncio.shield(store.run(lambda tx: _mark_dead(tx, names, reason=why)))
    finally:
        await asyncio.to_thread(store.close)


async def _answering(store: Store) -> tuple[str, ...]:
    """Instances that say that they are alive and are; the others are marked dead."""
    views = await store.read_async(instance_views)
    serving = [view for view in views.values() if view.state in ("alive", "suspect")]
    async with InstanceClient() as client:
        well = await asyncio.gather(*(_is_well(client, view) for view in serving))
    found = {view.spec.name: answers for view, answers in zip(serving, well, strict=True)}
    silent = [name for name, answers in found.items() if not answers]
    if silent:
        await store.run(lambda tx: _mark_dead(tx, silent, reason="does not answer"))
    return tuple(name for name, answers in found.items() if answers)


async def _is_well(client: InstanceClient, view: InstanceView) -> bool:
    endpoint = Endpoint(
        name=view.spec.name, url=view.spec.url, model=view.spec.model, speaks=view.spec.speaks
    )
    report = await client.health(endpoint, timeout_s=PROBE_TIMEOUT_S)
    return report.healthy


def _enter(tx: Transaction, specs: tuple[InstanceSpec, ...]) -> None:
    prefer_the_fast(tx)
    for spec in specs:
        enter_instance(tx, spec)
        set_instance_state(tx, spec.name, "alive")


def _mark_dead(tx: Transaction, names: Iterable[str], *, reason: str) -> None:
    for name in names:
        set_instance_state(tx, name, "dead", reason=reason)
