"""The one event loop of a process on which all its asynchronous tasks and all LLM calls run.

It lives in a thread of its own, so that neither a synchronous flow nor one that blocks its own loop
stops anybody's requests. Shared queues (one a store) and Prefect clients (one an API) live on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from prefect.settings import PREFECT_API_URL

from hexprefect.orchestration.prefect_internals import AsyncClientContext
from hexprefect.orchestration.secrets import resolve_secret
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.settings import settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0


class BackgroundLoop:
    """A running loop with what tasks share on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        # As many as there are synchronous bodies: the loop's own few threads would let leases idle,
        # and bodies that wait for one another would wait for ever.
        self.threads = ThreadPoolExecutor(sys.maxsize, thread_name_prefix="hexprefect-llm-task")
        self._closing = False
        self._queues: dict[str, asyncio.Task[SharedQueue]] = {}
        self._clients: dict[str | None, asyncio.Task[AsyncClientContext]] = {}
        self._thread = threading.Thread(target=self._run, name="hexprefect-loop", daemon=True)
        self._thread.start()

    def is_current(self) -> bool:
        """Whether the caller runs on this loop, and therefore must not block."""
        return threading.current_thread() is self._thread

    def run(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    async def from_other_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await it, from any loop."""
        if self.is_current():
            return await coroutine
        return await asyncio.wrap_future(self.run(coroutine))

    async def queue(self, url: str) -> SharedQueue:
        """This process's part in the queue of a store; call it on the loop."""
        opening = self._queues.get(url)
        if opening is None or (opening.done() and opening.exception() is not None):
            options = QueueOptions(
                lease_s=settings().lease_s,
                beat_every_s=settings().lease_s / 4,
                shortest_timeout_s=settings().shortest_timeout_s,
            )
            queue = SharedQueue(url, options=options, resolve_secret=resolve_secret)
            opening = self._queues[url] = self.loop.create_task(queue.start())
        return await asyncio.shield(opening)

    async def client_context(self) -> AsyncClientContext:
        """The Prefect client of this loop for the API that is configured now."""
        api = PREFECT_API_URL.value()
        entering = self._clients.get(api)
        if entering is None or (entering.done() and entering.exception() is not None):
            entering = self._clients[api] = self.loop.create_task(_enter_client())
        return await asyncio.shield(entering)

    async def leave_queues(self) -> None:
        """Leave every queue that this process takes part in."""
        opened, self._queues = list(self._queues.values()), {}
        for opening in opened:
            with contextlib.suppress(Exception):
                await (await opening).close()

    def close(self) -> None:
        """Leave the queues, close the clients, and end the thread."""
        if self.pid != os.getpid() or self.loop.is_closed():
            return
        with contextlib.suppress(Exception):
            self.run(self._close()).result(CLOSE_TIMEOUT_S)
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def _close(self) -> None:
        await self.leave_queues()
        for entering in self._clients.values():
            with contextlib.suppress(Exception):
                await (await entering).client.__aexit__(None, None, None)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Some task's child called `sys.exit`: every other flow run needs this loop.
                logger.exception("A coroutine asked the process to exit; the loop goes on.")
        self.loop.close()


async def _enter_client() -> AsyncClientContext:
    # Entered in a task of its own: the context variable that it sets ends with that task, and each
    # job sets it for itself.
    return await AsyncClientContext().__aenter__()


_current: BackgroundLoop | None = None
_creating = threading.Lock()


def background_loop() -> BackgroundLoop:
    """The loop of this process; a forked child gets its own."""
    global _current
    with _creating:
        if _current is None or _current.pid != os.getpid() or _current.loop.is_closed():
            _current = BackgroundLoop()
            # Earlier than `atexit`, by which time nothing may be handed to threads any more: this
            # process could not leave its queues, and others would wait until its leases expire.
            register: Any = threading._register_atexit  # type: ignore[attr-defined]
            register(_current.close)
        return _current
