"""The endpoints of the instances, as this process knows them: read from the store when needed."""

from __future__ import annotations

import time

from hexprefect.instances.endpoint import Endpoint
from hexprefect.queue.values import ResolveSecret
from hexprefect.store import InstanceView, Store, UnknownInstance
from hexprefect.store.views import instance_views

FRESH_S = 1.0
"""An endpoint's URL changes when an operator changes a pool: a second late does no harm."""


class EndpointDirectory:
    """Instance name → endpoint with its key."""

    def __init__(self, store: Store, resolve_secret: ResolveSecret) -> None:
        self._store = store
        self._resolve_secret = resolve_secret
        self._views: dict[str, InstanceView] = {}
        self._read_at = -1e9
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
        if fresh or time.monotonic() - self._read_at > FRESH_S:
            self._views = await self._store.read_async(instance_views)
            self._read_at = time.monotonic()
        return self._views
