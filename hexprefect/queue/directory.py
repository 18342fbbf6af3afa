"""What this process knows of the store without its lock: endpoints, and its own requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from hexprefect.errors import HexprefectError
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceRefused
from hexprefect.queue.values import ResolveSecret
from hexprefect.store import InstanceSpec, InstanceView, Store, UnknownInstance
from hexprefect.store.views import instance_views, open_request_states

FRESH_S = 1.0
"""An endpoint's URL changes when an operator changes a pool: a second late does no harm."""

RESOLVE_EVERY_S = 5.0
"""How soon a key that could not be had is asked for again."""

_Key = tuple[str, str, str, str, str | None]


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
        self._endpoints: dict[_Key, Endpoint] = {}
        self._refused: dict[_Key, tuple[float, HexprefectError]] = {}
        """Why there is no key for it, and until when that is believed."""

    async def endpoint(self, name: str) -> Endpoint:
        """Where to send a request for `name`.

        Raises:
            UnknownInstance: when the store has none of this name.
            InstanceRefused: when its key cannot be had in this process. That says nothing of the
                instance: another process may have it.
        """
        spec = (await self.view(name)).spec
        key = (spec.name, spec.url, spec.model, spec.speaks, spec.api_key_block)
        if key not in self._endpoints:
            until, why = self._refused.get(key, (-1e9, None))
            if why is None or time.monotonic() >= until:
                try:
                    self._endpoints[key] = await self._made(spec)
                except HexprefectError as failure:
                    why = failure
                    self._refused[key] = (time.monotonic() + RESOLVE_EVERY_S, failure)
                else:
                    self._refused.pop(key, None)
                    return self._endpoints[key]
            raise InstanceRefused(
                f"it has no key that can be used here. {why.problem}",
                instance=name,
                remedy=why.remedy,
            ) from why
        return self._endpoints[key]

    async def _made(self, spec: InstanceSpec) -> Endpoint:
        secret = None
        if spec.api_key_block:
            try:
                secret = await self._resolve_secret(spec.api_key_block)
            except HexprefectError:
                raise
            except Exception as failure:
                # What it says may hold the address of Prefect's API, with all that is in it.
                raise HexprefectError(
                    f"The API key {spec.api_key_block!r} could not be read: "
                    f"{type(failure).__name__}.",
                    remedy="See that Prefect's API can be reached from here.",
                ) from failure
        return Endpoint(
            name=spec.name, url=spec.url, model=spec.model, api_key=secret, speaks=spec.speaks
        )

    async def key_has_changed(self, refused: Endpoint) -> bool:
        """Read the key anew that an instance has refused; whether it is another one now."""
        for key in [key for key in self._endpoints if key[0] == refused.name]:
            if self._endpoints[key] == refused:
                del self._endpoints[key]
        return (await self.endpoint(refused.name)).api_key != refused.api_key

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
