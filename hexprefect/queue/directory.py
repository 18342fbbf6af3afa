"""What this process knows of the store without its lock: endpoints, and its own requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from hexprefect.instances.endpoint import Endpoint
from hexprefect.queue.values import ResolveSecret
from hexprefect.store import InstanceView, Store, UnknownInstance
from hexprefect.store.views import instance_views, open_request_states

FRESH_S = 1.0
"""An endpoint's URL changes when an operator changes a pool: a second late does no harm."""


class EndpointDirectory:
    """Instance name → endpoint with its key."""

    def __init__(self, store: Store, resolve_secret: ResolveSecret) -> None:
        self._store = store
        self._resolve_secret = resolve_secret
        self._views: dict[str, InstanceView] = {}
        self._read_at = -1e9
        self._reading = asyncio.Lock()
        self._open: Mapping[str, str] = {}
        self._open_read_at = -1e9
        self._endpoints: dict[tuple[str, str, str, str | None], Endpoint] = {}

    async def endpoint(self, name: str) -> Endpoint:
        """Where to send a request for `name`.

        Raises:
            UnknownInstance: when the store has none of this name.
        """
        spec = (await self.view(name)).spec
        key = (spec.name, spec.url, spec.model, spec.api_key_block)
        if key not in self._endpoints:
            secret = await self._resolve_secret(spec.api_key_block) if spec.api_key_block else None
            self._endpoints[key] = Endpoint(
                name=spec.name, url=spec.url, model=spec.model, api_key=secret, speaks=spec.speaks
            )
        return self._endpoints[key]

    def forget_key(self, name: str) -> None:
        """Resolve the key of `name` anew before its next request: it was refused."""
        for key in [key for key in self._endpoints if key[0] == name]:
            del self._endpoints[key]

    async def view(self, name: str) -> InstanceView:
        """What the store says of `name`, at most a second old."""
        views = await self.views()
        if name not in views:
            views = await self.views(fresh=True)
        if name not in views:
            raise UnknownInstance(f"No instance {name!r} in the store.")
        return views[name]

    async def views(self, *, fresh: bool = False) -> dict[str, InstanceView]:
        """All instances by name."""
        asked_at = time.monotonic()
        if fresh or asked_at - self._read_at > FRESH_S:
            async with self._reading:
                # Whoever waited for another's look has seen what it wanted to see.
                if self._read_at < asked_at:
                    self._views = await self._store.read_async(instance_views)
                    self._read_at = time.monotonic()
        return self._views

    async def open_requests(self, *, since: float) -> Mapping[str, str]:
        """This process's waiting, admitted and running requests: id → which of these.

        Args:
            since: the look must have begun after this moment of the monotonic clock.
        """
        async with self._reading:
            if self._open_read_at < since:
                begun = time.monotonic()
                process = self._store.process
                self._open = await self._store.read_async(
                    lambda connection: open_request_states(connection, process)
                )
                self._open_read_at = begun
        return self._open
