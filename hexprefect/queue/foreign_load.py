"""The load that others put on the instances, looked at by whichever process comes first.

A server's `/metrics` count everything that it has; less what is ours, that is what others have. The
two numbers are never of quite the same moment, so ours is taken as the larger of the counts before
and after the look, and what a second look shortly after does not confirm is not believed: a
request that has just ended would else be taken for somebody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping

from hexprefect.errors import HexprefectError
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.errors import InstanceError
from hexprefect.instances.load import InstanceLoad
from hexprefect.queue.directory import EndpointDirectory
from hexprefect.scheduling.foreign import foreign_requests
from hexprefect.store import InstanceView, Store
from hexprefect.store.foreign import see_foreign

logger = logging.getLogger(__name__)

LOOK_TIMEOUT_S = 2.0

CONFIRM_AFTER_S = 0.25

TELLS = frozenset({"vllm", "llama.cpp"})
"""Dialects whose servers have metrics that we can read."""

SILENT_FOR_S = 300.0
"""A server that told nothing is asked again after so long: its metrics may be switched on."""

Foreign = tuple[int, int]
"""Requests of others that run and that wait."""


class ForeignLoad:
    """Looks at the instances' own counts, and writes what is not ours into the store.

    Args:
        look_every_s: seconds between looks at one instance, by all processes together.
    """

    def __init__(
        self,
        store: Store,
        client: InstanceClient,
        directory: EndpointDirectory,
        *,
        look_every_s: float,
    ) -> None:
        self._store = store
        self._client = client
        self._directory = directory
        self._look_every_s = look_every_s
        self._silent_until: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._looking = asyncio.get_running_loop().create_task(self._look_for_ever())

    async def stop(self) -> None:
        """End looking."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def look(self) -> Mapping[str, Foreign]:
        """Look at each instance that nobody has looked at lately; what others have there."""
        before = await self._directory.views(fresh=True)
        due = [name for name, view in before.items() if self._is_due(view)]
        if not due:
            return {}
        first, between = await self._counted(due, before)
        await asyncio.sleep(CONFIRM_AFTER_S)
        second, _ = await self._counted(sorted(first), between)
        seen = {name: min(first[name], second[name], key=sum) for name in second}
        if seen:
            await self._store.run(lambda tx: see_foreign(tx, seen))
        return seen

    async def _look_for_ever(self) -> None:
        # What a process of yesterday saw is soon replaced, without slowing this one's start.
        pause_s = min(1.0, self._look_every_s)
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._look_every_s
            try:
                await self.look()
            except Exception:
                logger.warning("The load of others could not be read; trying again.", exc_info=True)

    def _is_due(self, view: InstanceView) -> bool:
        if view.state not in ("alive", "suspect") or view.spec.speaks not in TELLS:
            return False
        if time.monotonic() < self._silent_until.get(view.spec.name, 0.0):
            return False
        seen_at = view.foreign_seen_at
        return seen_at is None or self._store.now() - seen_at >= 0.8 * self._look_every_s

    async def _counted(
        self, names: list[str], before: Mapping[str, InstanceView]
    ) -> tuple[dict[str, Foreign], Mapping[str, InstanceView]]:
        """What others have on each of `names`, and the views from after the look."""
        told = dict(zip(names, await asyncio.gather(*map(self._told, names)), strict=True))
        after = await self._directory.views(fresh=True)
        counted: dict[str, Foreign] = {}
        for name, load in told.items():
            if load is None or load.running is None or name not in after:
                continue
            ours = max(before[name].occupied, after[name].occupied)
            counted[name] = foreign_requests(
                running=load.running, waiting=load.waiting or 0, ours=ours
            )
        return counted, after

    async def _told(self, name: str) -> InstanceLoad | None:
        """What a server says; `None` where it says nothing that can be read."""
        try:
            endpoint = await self._directory.endpoint(name)
            load = await self._client.load(endpoint, timeout_s=LOOK_TIMEOUT_S)
        except HexprefectError as failure:
            # Whether it lives is judged elsewhere: here it only says nothing.
            passes = isinstance(failure, InstanceError) and failure.kind != "rejected"
            if not passes:
                self._silent_until[name] = time.monotonic() + SILENT_FOR_S
            return None
        if load.running is None:
            self._silent_until[name] = time.monotonic() + SILENT_FOR_S
        return load
