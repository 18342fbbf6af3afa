"""Liveness of the fleet as this process sees it: by its own traffic first, by probes second."""

from __future__ import annotations

import logging

from hexprefect.instances.client import InstanceClient
from hexprefect.instances.errors import InstanceError
from hexprefect.queue.directory import EndpointDirectory
from hexprefect.store import Store

logger = logging.getLogger(__name__)


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

    def start(self) -> None:
        """Begin to probe instances that are not well."""

    async def stop(self) -> None:
        """End probing."""

    def succeeded(self, instance: str) -> None:
        """An instance answered."""

    async def failed(self, instance: str, error: InstanceError) -> None:
        """An instance failed a request."""
