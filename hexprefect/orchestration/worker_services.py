"""Tasks beside the flow runs of a worker: they end with it, and none ends when another fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hexprefect.orchestration.worker_settings import AnyLogger


class Services:
    """The tasks that a worker has started for itself."""

    def __init__(self, logger: AnyLogger) -> None:
        self._logger = logger
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside everything else, until it ends or the worker stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel what still runs, and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        """One round of a service; a server that is away for a while ends none of them."""
        try:
            await work
        except Exception as error:
            self._logger.warning("%s: %s", type(error).__name__, error)
