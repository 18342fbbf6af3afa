"""Prefect's flow engine, for many flow runs inside one process.

Prefect's engines assume a process for each flow run: every run starts a heartbeat thread and a
thread with an event loop and a web socket of its own, waits for both on the loop that is to run the
flow, and reports every cancellation as a crash. Here the worker does that work once for all runs.

This is the only module of the worker that touches private parts of Prefect.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import Future, Task
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from uuid import UUID

from prefect._flow_run_suspension import (
    FlowRunSuspensionRequest,
    mark_flow_run_suspension_requested,
    register_flow_run_suspension_request,
)
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, Pause
from prefect.flow_engine import AsyncFlowRunEngine, FlowRunEngine
from prefect.flows import Flow
from prefect.results import ResultStore
from prefect.states import Cancelled, Cancelling
from prefect.utilities.callables import (
    call_with_parameters,
    get_call_parameters,
    parameters_to_args_kwargs,
)

Ending = Literal["cancel", "reschedule", "release"]
"""Why a run is stopped from outside: a person cancelled it, this worker shuts down, or the run has
been given to another worker."""

mark_suspended = mark_flow_run_suspension_requested
"""Tell a running flow run that it has been suspended; it stops at its next task."""


@dataclass(eq=False)
class RunControl:
    """What the worker and the engine say to each other about one flow run."""

    flow_run: FlowRun
    ending: Ending | None = None
    """Set by the worker, before it interrupts the run."""
    winding_down: bool = False
    """Set by the engine once it has seen the interruption: from here on it is left in peace."""
    settling: Task[None] | None = None
    """Tells the server how an interrupted run ended."""
    done: Future[State[Any] | None] | None = None
    """Belongs to the worker's loop."""
    abandoned: Future[None] | None = None
    """Resolved when the worker stops waiting for a run that does not let itself be interrupted."""
    task: Task[Any] | None = None
    thread: threading.Thread | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def flow_run_id(self) -> UUID:
        return self.flow_run.id

    @property
    def name(self) -> str:
        return self.flow_run.name

    @property
    def has_been_told(self) -> bool:
        """Whether the server knows what became of the run, or the worker is about to tell it."""
        if self.ending is not None:
            return True
        done = self.done
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return False
        state = done.result()
        return state is not None and not (state.is_running() or state.is_pending())


class RunInterrupted(BaseException):
    """Raised inside the thread of a sync flow to stop it; flows must not catch it."""


async def run_async_flow(flow: Flow[..., Any], control: RunControl) -> State[Any] | None:
    """Run an async flow to its end and return the last state that its engine saw.

    Errors of the flow are in the state. Only an error of the engine itself is raised.
    """
    engine: InProcessAsyncEngine = InProcessAsyncEngine(
        flow=flow,
        flow_run=control.flow_run,
        parameters=_parameters(flow, control.flow_run),
        control=control,
    )
    try:
        async with engine.start():
            while engine.is_running():
                async with engine.run_context():
                    await engine.call_flow_fn()
    except (Abort, Pause):
        pass
    # Also SystemExit: out of this task it would end the loop of every other flow run.
    except BaseException:
        if not _has_ended(engine.state, control):
            raise
    return engine.state


def run_sync_flow(flow: Flow[..., Any], control: RunControl) -> State[Any] | None:
    """Run a sync flow to its end in this thread; otherwise like `run_async_flow`."""
    engine: InProcessSyncEngine = InProcessSyncEngine(
        flow=flow,
        flow_run=control.flow_run,
        parameters=_parameters(flow, control.flow_run),
        control=control,
    )
    try:
        with engine.start():
            while engine.is_running():
                with engine.run_context():
                    # Returns something to await for async flows only, which this one is not.
                    engine.call_flow_fn()
    except (Abort, Pause):
        pass
    except BaseException:
        if not _has_ended(engine.state, control):
            raise
    return engine.state


def _has_ended(state: State[Any] | None, control: RunControl) -> bool:
    return control.ending is not None or (state is not None and state.is_final())


def _parameters(flow: Flow[..., Any], flow_run: FlowRun) -> dict[str, Any]:
    args, kwargs = parameters_to_args_kwargs(flow.fn, flow_run.parameters or {})
    return get_call_parameters(flow.fn, args, kwargs)


@dataclass
class InProcessAsyncEngine(AsyncFlowRunEngine[Any, Any]):
    """An engine that starts no threads and leaves the end of an interrupted run to the worker."""

    control: RunControl = field(kw_only=True)

    @property
    def heartbeat_seconds(self) -> int | None:
        """None: no heartbeat thread for each run, because the worker's heartbeat stands for all."""
        return None

    @contextmanager
    def setup_flow_run_suspension_request(self) -> Iterator[FlowRunSuspensionRequest]:
        """Register for suspension, which the worker observes for all of its runs."""
        request = self._get_flow_run_suspension_request()
        with register_flow_run_suspension_request(self.control.flow_run_id, request):
            yield request

    @asynccontextmanager
    async def setup_run_context(self, client: PrefectClient | None = None) -> AsyncIterator[None]:
        """As Prefect's; the task runner is left in a thread, because its leaving waits for tasks.

        On the loop it would hold up all other flow runs.
        """
        async with super().setup_run_context(client):
            error: BaseException | None = None
            try:
                yield
            except BaseException as raised:
                error = raised
                raise
            finally:
                await _leave_task_runner(error)

    async def call_flow_fn(self) -> Any:
        """Run the flow's function; one that is a generator to its end, as nobody asks for items."""
        called: Any = call_with_parameters(self.flow.fn, self.parameters or {})
        if self.flow.isgenerator:
            result = None
            async for _ in called:
                pass
        else:
            result = await called
        await self.handle_success(result)
        return result

    async def handle_success(self, result: Any) -> Any:
        # Imported here, as `_in_thread` does.
        from hexprefect.orchestration.task_job import futures_in

        if self.control.ending in (None, "reschedule"):
            for future in futures_in(result):
                # Prefect's engine blocks for the futures that a flow returns.
                await _in_thread(future.wait)
            return await super().handle_success(result)
        await self._wind_down(None)
        return result

    async def handle_exception(
        self, exc: Exception, msg: str | None = None, result_store: ResultStore | None = None
    ) -> State[Any]:
        if self.control.ending is None:
            return await super().handle_exception(exc, msg, result_store)
        await self._wind_down(exc)
        return self.state

    async def handle_timeout(self, exc: TimeoutError) -> None:
        if self.control.ending is None:
            await super().handle_timeout(exc)
        else:
            await self._wind_down(exc)

    async def handle_crash(self, exc: BaseException) -> None:
        if self.control.ending is None:
            await super().handle_crash(exc)
        else:
            await self._wind_down(exc)

    async def _wind_down(self, exc: BaseException | None) -> None:
        with self.control.lock:
            self.control.winding_down = True
        if self.control.ending == "cancel":
            await self.call_hooks(Cancelling(message="Cancelled on request."))
        _leave(self, exc)


@dataclass
class InProcessSyncEngine(FlowRunEngine[Any, Any]):
    """The sync twin of `InProcessAsyncEngine`."""

    control: RunControl = field(kw_only=True)

    @property
    def heartbeat_seconds(self) -> int | None:
        """None: see `InProcessAsyncEngine`."""
        return None

    @contextmanager
    def setup_flow_run_suspension_request(self) -> Iterator[FlowRunSuspensionRequest]:
        """Register for suspension, which the worker observes for all of its runs."""
        request = self._get_flow_run_suspension_request()
        with register_flow_run_suspension_request(self.control.flow_run_id, request):
            yield request

    def call_flow_fn(self) -> Any:
        """Run the flow's function; one that is a generator to its end, as nobody asks for items."""
        if not self.flow.isgenerator:
            return super().call_flow_fn()
        items: Any = call_with_parameters(self.flow.fn, self.parameters or {})
        for _ in items:
            pass
        self.handle_success(None)
        return None

    def handle_success(self, result: Any) -> Any:
        if self.control.ending in (None, "reschedule"):
            return super().handle_success(result)
        self._wind_down(None)
        return result

    def handle_exception(
        self, exc: Exception, msg: str | None = None, result_store: ResultStore | None = None
    ) -> State[Any]:
        if self.control.ending is None:
            return super().handle_exception(exc, msg, result_store)
        self._wind_down(exc)
        return self.state

    def handle_timeout(self, exc: TimeoutError) -> None:
        if self.control.ending is None:
            super().handle_timeout(exc)
        else:
            self._wind_down(exc)

    def handle_crash(self, exc: BaseException) -> None:
        if self.control.ending is None:
            super().handle_crash(exc)
        else:
            self._wind_down(exc)

    def _wind_down(self, exc: BaseException | None) -> None:
        with self.control.lock:
            self.control.winding_down = True
        if self.control.ending == "cancel":
            self.call_hooks(Cancelling(message="Cancelled on request."))
        _leave(self, exc)


def _leave(engine: InProcessAsyncEngine | InProcessSyncEngine, exc: BaseException | None) -> None:
    """Let the engine's loop end without a word to the server: the worker will tell it."""
    engine.short_circuit = True
    if engine.flow_run is not None:
        engine.flow_run.state = Cancelled(message="Interrupted by the worker.")
    if exc is not None:
        engine._raised = exc  # type: ignore[assignment]


async def _leave_task_runner(error: BaseException | None) -> None:
    """Do what leaving the flow run's task runner waits for; then there is nothing left to wait for.

    Ours waits for, or cancels, what the flow did not await. Prefect's own cancel it.
    """
    context = FlowRunContext.get()
    runner: Any = context.task_runner if context is not None else None
    if (leave := getattr(runner, "leave", None)) is not None:
        await _in_thread(leave, error)
    elif (cancel_all := getattr(runner, "cancel_all", None)) is not None:
        await _in_thread(cancel_all)


async def _in_thread(work: Callable[..., Any], *arguments: Any) -> None:
    # Imported here: Prefect loads this module for every command, and few of them run flows.
    from hexprefect.orchestration.background_loop import background_loop

    # Not in the loop's few threads: this may take as long as somebody's tasks do.
    call = partial(copy_context().run, work, *arguments)
    await asyncio.wrap_future(background_loop().threads.submit(call))
