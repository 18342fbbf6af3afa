"""Where flow runs live: one event loop in a thread of its own, and a thread for each sync flow.

The worker's own loop (polling, heartbeats, cancellation) stays on the main thread, so that a flow
that blocks is noticed instead of making the worker look dead, and so that Prefect's engine, which
on the main thread would replace the process's SIGTERM handler for every run, leaves it alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from prefect.client.schemas.objects import State
from prefect.context import AsyncClientContext
from prefect.flows import Flow
from prefect.logging.loggers import flow_run_logger

from hexprefect.orchestration.worker_engine import (
    RunControl,
    RunInterrupted,
    run_async_flow,
    run_sync_flow,
)
from hexprefect.orchestration.worker_settings import AnyLogger

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 5.0
_WATCH_INTERVAL_S = 0.2

_current_run: ContextVar[RunControl | None] = ContextVar("hexprefect_current_run", default=None)


class FlowLoop:
    """Runs flows for a worker.

    Args:
        logger: for what concerns no single flow run.
        blocked_seconds: how long code may block the loop before it is reported, with the name of
            the flow run and the line.
    """

    def __init__(self, *, logger: AnyLogger, blocked_seconds: float) -> None:
        self._logger = logger
        self._blocked_seconds = blocked_seconds
        self._loop = asyncio.new_event_loop()
        # Any: typeshed's protocol for task factories differs between Python versions.
        factory: Any = self._create_task
        self._loop.set_task_factory(factory)
        self._runs: weakref.WeakKeyDictionary[asyncio.Task[Any], RunControl] = (
            weakref.WeakKeyDictionary()
        )
        self._client: AsyncClientContext | None = None
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="hexgen-flows", daemon=True)

    async def start(self) -> None:
        """Start the thread and connect its client, which all async flow runs share.

        Raises:
            TimeoutError: it did not start within a minute.
        """
        self._thread.start()
        await asyncio.wait_for(asyncio.wrap_future(self._started), _START_LIMIT_S)

    async def stop(self) -> None:
        """End the loop within five seconds, cancelling what still runs on it."""
        if not self._thread.is_alive():
            return
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _STOP_LIMIT_S)

    def run(self, flow: Flow[..., Any], control: RunControl) -> asyncio.Future[State[Any] | None]:
        """Start a flow run; the future ends when the run has ended, also if it was interrupted."""
        context = copy_context()
        context.run(_current_run.set, control)
        start = self._run_async if flow.isasync else self._run_sync
        return asyncio.wrap_future(context.run(start, flow, control))

    def interrupt(self, control: RunControl) -> None:
        """Ask a run to stop: a cancellation for async flows, an exception for sync ones.

        A sync flow notices it when its present call into C code (a `sleep`, a query) returns. A
        run that is already winding down is left in peace.
        """
        with control.lock:
            if control.winding_down:
                return
            if control.task is not None:
                self._loop.call_soon_threadsafe(control.task.cancel)
            elif control.thread is not None and control.thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(control.thread.ident), ctypes.py_object(RunInterrupted)
                )

    async def watch(self) -> None:
        """Report code that blocks the loop, until cancelled. To be run on another loop."""
        answered = True
        asked_at = time.monotonic()
        reported: RunControl | None = None
        blocked = False

        def answer() -> None:
            nonlocal answered
            answered = True

        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            waited = time.monotonic() - asked_at
            if answered:
                if blocked:
                    self._log(reported, f"The event loop was blocked for about {waited:.1f} s.")
                blocked, answered, asked_at = False, False, time.monotonic()
                self._loop.call_soon_threadsafe(answer)
            elif waited > self._blocked_seconds and not blocked:
                blocked = True
                reported = self._report_blockage(waited)

    def _report_blockage(self, waited: float) -> RunControl | None:
        task = asyncio.current_task(self._loop)
        control = self._runs.get(task) if task is not None else None
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)[-4:]) if frame is not None else ""
        who = f"Flow run {control.name!r}" if control is not None else "Something"
        self._log(
            control,
            f"{who} has blocked the event loop of all flow runs for {waited:.1f} s. Await "
            f"something, or move the blocking call to a thread with asyncio.to_thread. "
            f"It is here:\n{stack}",
        )
        return control

    def _log(self, control: RunControl | None, message: str) -> None:
        self._logger.warning(message)
        if control is not None:
            flow_run_logger(control.flow_run).warning(message)

    def _run_async(
        self, flow: Flow[..., Any], control: RunControl
    ) -> concurrent.futures.Future[State[Any] | None]:
        async def body() -> State[Any] | None:
            with control.lock:
                control.task = asyncio.current_task()
            if control.ending is not None:
                return None
            if self._client is not None:
                # A context variable: this sets it for the tasks of this run only.
                AsyncClientContext.__var__.set(self._client)
            return await run_async_flow(flow, control)

        return asyncio.run_coroutine_threadsafe(body(), self._loop)

    def _run_sync(
        self, flow: Flow[..., Any], control: RunControl
    ) -> concurrent.futures.Future[State[Any] | None]:
        ended: concurrent.futures.Future[State[Any] | None] = concurrent.futures.Future()

        def body() -> None:
            try:
                state = run_sync_flow(flow, control) if control.ending is None else None
            except BaseException as error:
                self._leave_thread(control)
                ended.set_exception(error)
            else:
                self._leave_thread(control)
                ended.set_result(state)

        control.thread = threading.Thread(
            target=copy_context().run, args=(body,), name=f"flow-{control.name}", daemon=True
        )
        control.thread.start()
        return ended

    @staticmethod
    def _leave_thread(control: RunControl) -> None:
        with control.lock:
            control.thread = None

    def _create_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        *,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context, **options)
        control = context.get(_current_run) if context is not None else _current_run.get()
        if control is not None:
            self._runs[task] = control
        return task

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._client = self._loop.run_until_complete(AsyncClientContext().__aenter__())
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException:
                # SystemExit or KeyboardInterrupt, raised by a task that a flow started beside
                # itself, leaves the loop. It is that run's affair; the others go on.
                self._logger.exception("A flow run tried to end the worker; it goes on.")
        self._close()

    def _close(self) -> None:
        async def wind_down() -> None:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.wait(rest, timeout=_STOP_LIMIT_S / 2) if rest else None
            if self._client is not None:
                await self._client.client.__aexit__(None, None, None)

        try:
            self._loop.run_until_complete(wind_down())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException:
            self._logger.debug("The loop of the flow runs did not close cleanly.", exc_info=True)
        finally:
            self._loop.close()
