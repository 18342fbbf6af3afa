"""Liveness of the fleet as this process sees it: by its own traffic first, by probes second.

What this process learns becomes the instance's state in the store, where every process sees it;
what others have learnt arrives from there. The judgement itself is `hexprefect.instances.health`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from hexprefect.errors import HexprefectError
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.errors import InstanceError, InstanceRefused
from hexprefect.instances.health import HealthMonitor, StateChange
from hexprefect.queue.directory import EndpointDirectory
from hexprefect.store import InstanceView, Store, UnknownInstance
from hexprefect.store.fleet import set_instance_state
from hexprefect.store.transaction import Transaction

logger = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 3.0

OVERRULE_AFTER_S = 15.0
"""A hung engine answers its health route: whoever has no traffic there believes the process that
has, which looks again by itself; only after so long is it taken to be gone."""


class FleetHealth:
    """Turns evidence about instances into their state in the store."""

    def __init__(
        self,
        store: Store,
        client: InstanceClient,
        directory: EndpointDirectory,
        *,
        probe_every_s: float,
    ) -> None:
        self._store = store
        self._client = client
        self._directory = directory
        self._probe_every_s = probe_every_s
        self._monitor = HealthMonitor()
        self._probing: asyncio.Task[None] | None = None
        self._applying: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        """Begin to probe instances that are quiet or not well."""
        self._probing = asyncio.get_running_loop().create_task(self._probe_for_ever())

    async def stop(self) -> None:
        """End probing."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing

    def succeeded(self, instance: str) -> None:
        """An instance answered."""
        change = self._monitor.success(instance, time.monotonic())
        if change is not None:
            applying = asyncio.ensure_future(self._apply(change))
            self._applying.add(applying)
            applying.add_done_callback(self._applying.discard)

    async def failed(self, instance: str, error: InstanceError) -> None:
        """An instance failed a request; returns when the store knows what follows from it."""
        if isinstance(error, InstanceRefused):
            # The key may have been changed since it was read.
            self._directory.forget_key(instance)
        change = self._monitor.failure(instance, error.kind, time.monotonic())
        if change is not None:
            await self._apply(change)

    async def _probe_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._probe_every_s)
            try:
                views = await self._directory.views()
                watched = [name for name, view in views.items() if view.state != "draining"]
                due = self._monitor.probes_due(watched, time.monotonic())
                await asyncio.gather(*(self._probe(views[name]) for name in due))
            except Exception:
                logger.warning("Probing the instances failed; trying again.", exc_info=True)

    async def _probe(self, view: InstanceView) -> None:
        name = view.spec.name
        endpoint = await self._directory.endpoint(name)
        report = await self._client.health(endpoint, timeout_s=PROBE_TIMEOUT_S)
        change = self._monitor.probe(
            name,
            report.healthy,
            time.monotonic(),
            kind=report.kind,
            busy=view.occupied > 0,
        )
        if change is not None:
            await self._apply(change)
        elif report.healthy and view.state != "alive" and self._monitor.state(name) == "alive":
            # The word of a process that is gone, or was mistaken.
            await self._store.run(lambda tx: _overrule(tx, name))

    async def _apply(self, change: StateChange) -> None:
        logger.warning("Instance %s is %s: %s", change.instance, change.after, change.reason)
        await self._set(change.instance, change.after, change.reason)

    async def _set(self, name: str, state: str, reason: str) -> None:
        with contextlib.suppress(UnknownInstance, HexprefectError):
            await self._store.run(lambda tx: _set_unless_draining(tx, name, state, reason))


def _overrule(tx: Transaction, name: str) -> None:
    """Believe a health route, once nobody has said anything else for a while."""
    load = tx.instances.get(name)
    if load is None or load.state not in ("suspect", "dead"):
        return
    if tx.now - load.changed_at > OVERRULE_AFTER_S:
        set_instance_state(tx, name, "alive", reason="answers its health route")


def _set_unless_draining(tx: Transaction, name: str, state: str, reason: str) -> None:
    """An operator's word stands: an instance that drains is not brought back by a probe."""
    load = tx.instances.get(name)
    if load is not None and load.state not in ("draining", state):
        set_instance_state(tx, name, state, reason=reason)  # type: ignore[arg-type]
