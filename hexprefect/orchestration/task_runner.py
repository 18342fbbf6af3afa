"""`HexgenTaskRunner`: LLM tasks of all flow runs share one queue over unequal instances."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
import uuid
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import RunInput, State
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Pending
from prefect.task_runners import TaskRunner

from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.flow_query import FlowQuery, QueryDescription
from hexprefect.orchestration.future import HexgenFuture
from hexprefect.orchestration.llm_task import LlmTask
from hexprefect.orchestration.llm_task_engine import run_llm_task
from hexprefect.orchestration.prefect_internals import (
    AsyncClientContext,
    FlowRunContext,
    create_task_run_locally,
    emit_task_run_state_change_event,
    run_task_async,
    run_task_sync,
    uuid7,
    visit_collection,
)
from hexprefect.scheduling import Workflow
from hexprefect.settings import settings

CANCEL_TIMEOUT_S = 5.0
"""How long the end of a flow run waits until its cancelled tasks have told Prefect so."""


@dataclass(eq=False)
class _Job:
    """One submitted task, until it has ended."""

    task: Task[Any, Any]
    parameters: dict[str, Any]
    wait_for: Any
    dependencies: Any
    task_run_id: uuid.UUID
    context: Context
    done: Future[State[Any]]
    future: HexgenFuture[Any]
    upstream: tuple[PrefectFuture[Any], ...]
    task_run: Any = None
    last_event: Any = None
    running: asyncio.Task[None] | None = None
    cancelled: bool = False
    cancel_event: threading.Event = field(default_factory=threading.Event)


class HexgenTaskRunner(TaskRunner[Any]):
    """Runs the tasks of a flow; LLM tasks go through the queue that all processes share.

    Ordinary tasks start as soon as their upstream tasks have ended: asynchronous ones on one event
    loop for the whole process, synchronous ones in threads. A task declared with `@llm_task` is
    submitted to the store when its upstream tasks have ended; it waits in the queue of the instance
    it is dispatched to, in the state `AwaitingInstance`, and its body runs when that instance takes
    it. Retries, timeouts, caching, `map` and `wait_for` behave as with Prefect's own runner.

    Args:
        store: URL of the store; `HEXPREFECT_STORE` by default.
        tenant: whose queries these are; `HEXPREFECT_TENANT` by default.
        slo_s: seconds from a flow run's expected start to its deadline; `HEXPREFECT_SLO_S`.
        database: under which name predictions are kept.
        workflow: the stages that follow one another, so that each gets its share of the time.

    Example:
        ```python
        @flow(task_runner=HexgenTaskRunner(slo_s=60))
        async def report(texts: list[str]):
            return [await future for future in summarise.map(texts)]
        ```
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        tenant: str | None = None,
        slo_s: float | None = None,
        database: str = "",
        workflow: Workflow | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._options: dict[str, Any] = {
            "store": store,
            "tenant": tenant,
            "slo_s": slo_s,
            "database": database,
            "workflow": workflow,
        }
        self.flow_query: FlowQuery | None = None
        self._jobs: set[_Job] = set()
        self._jobs_lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def name(self) -> str:
        """Prefect's name for it."""
        return "hexgen"

    def duplicate(self) -> HexgenTaskRunner:
        """A runner with the same options, for one flow run."""
        return type(self)(**self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HexgenTaskRunner) and self._options == other._options

    __hash__ = object.__hash__

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, **state["options"])

    # -- a flow run's life ----------------------------------------------------------------------

    def __enter__(self) -> HexgenTaskRunner:
        super().__enter__()
        options, defaults = self._options, settings()
        self.flow_query = FlowQuery(
            options["store"] or defaults.store.get_secret_value(),
            QueryDescription(
                tenant=options["tenant"] or defaults.tenant,
                slo_s=defaults.slo_s if options["slo_s"] is None else options["slo_s"],
                database=options["database"],
                workflow=options["workflow"],
            ),
        )
        self._threads = ThreadPoolExecutor(
            max_workers=sys.maxsize, thread_name_prefix="hexprefect-task"
        )
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        if exc_type is not None:
            self.cancel_all()
        nested = background_loop().is_current()
        if nested:
            # A flow inside an asynchronous task: waiting would stop the loop that it waits for.
            self.cancel_all()
        else:
            self._wait_for_jobs(None if exc_type is None else CANCEL_TIMEOUT_S)
        if self.flow_query is not None and self.flow_query.is_registered:
            ending = background_loop().run(self._end_query(exc_value))
            if not nested:
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    ending.result(CANCEL_TIMEOUT_S)
        if self._threads is not None:
            self._threads.shutdown(wait=exc_type is None, cancel_futures=True)
            self._threads = None
        super().__exit__(exc_type, exc_value, traceback)

    def cancel_all(self) -> None:
        """Cancel what this flow run has submitted and has not ended.

        Prefect's engine also calls this on the flow's template, which runs nothing itself: other
        flow runs of the same process go on.
        """
        with self._jobs_lock:
            jobs = list(self._jobs)
        for job in jobs:
            job.cancelled = True
            job.cancel_event.set()
            background_loop().loop.call_soon_threadsafe(self._cancel_on_loop, job)

    # -- submitting -----------------------------------------------------------------------------

    def submit(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[RunInput]] | None = None,
    ) -> HexgenFuture[Any]:
        """Submit a task; it runs when everything that it depends on has ended.

        Raises:
            RuntimeError: when the runner is not started.
        """
        if not self._started or self.flow_query is None:
            raise RuntimeError("Task runner is not started")
        flow_context = FlowRunContext.get()
        if flow_context is not None:
            self.flow_query.belongs_to(flow_context.flow_run)
        done: Future[State[Any]] = Future()
        done.set_running_or_notify_cancel()
        task_run_id = uuid7()
        wait_for = list(wait_for) if wait_for is not None else None
        job = _Job(
            task=task,
            parameters=parameters,
            wait_for=wait_for,
            dependencies=dependencies,
            task_run_id=task_run_id,
            context=copy_context(),
            done=done,
            future=HexgenFuture(task_run_id=task_run_id, wrapped_future=done),
            upstream=_futures_in([parameters, wait_for]),
        )
        with self._jobs_lock:
            self._jobs.add(job)
        done.add_done_callback(lambda _: self._forget(job))
        self._when_upstream_ended(job)
        return job.future

    def _when_upstream_ended(self, job: _Job) -> None:
        """Start the job when its upstream futures are final: until then it holds nothing."""
        if isinstance(job.task, LlmTask) or job.upstream:
            job.context.run(self._create_task_run, job)
        if not job.upstream:
            self._start(job)
            return
        missing, lock = [len(job.upstream)], threading.Lock()

        def one_ended(_: object) -> None:
            with lock:
                missing[0] -= 1
                all_ended = missing[0] == 0
            if all_ended:
                self._start(job)

        for future in job.upstream:
            future.add_done_callback(one_ended)

    def _create_task_run(self, job: _Job) -> None:
        job.task_run = create_task_run_locally(
            job.task,
            job.task_run_id,
            job.parameters,
            wait_for=job.wait_for,
            extra_task_inputs=job.dependencies,
        )
        if job.upstream:
            state: State[Any] = Pending(
                name="AwaitingUpstream", message="Waiting for upstream tasks."
            )
            state.state_details.task_run_id = job.task_run_id
            state.state_details.flow_run_id = job.task_run.flow_run_id
            job.task_run.state, job.task_run.state_id = state, state.id
            job.task_run.state_name = state.name
        job.last_event = emit_task_run_state_change_event(
            task_run=job.task_run, initial_state=None, validated_state=job.task_run.state
        )

    def _start(self, job: _Job) -> None:
        if job.cancelled:
            self._end(job, Cancelled(message="The flow run was cancelled."))
        elif job.task.isasync or isinstance(job.task, LlmTask):
            background_loop().loop.call_soon_threadsafe(self._start_on_loop, job)
        elif self._threads is not None:
            self._threads.submit(job.context.run, self._run_in_thread, job)
        else:
            self._end(job, Cancelled(message="The flow run had ended."))

    # -- running --------------------------------------------------------------------------------

    def _start_on_loop(self, job: _Job) -> None:
        if job.cancelled:
            self._end(job, Cancelled(message="The flow run was cancelled."))
            return
        job.running = background_loop().loop.create_task(
            self._run_on_loop(job), context=job.context
        )

    async def _run_on_loop(self, job: _Job) -> None:
        try:
            # The flow's client belongs to the flow's loop; all jobs share the one of this loop.
            AsyncClientContext.__var__.set(await background_loop().client_context())
            if isinstance(job.task, LlmTask):
                state = await self._run_llm_task(job.task, job)
            else:
                ended: Any = await run_task_async(
                    task=job.task,
                    task_run_id=job.task_run_id,
                    task_run=job.task_run,
                    parameters=job.parameters,
                    wait_for=job.wait_for,
                    return_type="state",
                    dependencies=job.dependencies,
                )
                state = ended
        except asyncio.CancelledError:
            self._end(job, Cancelled(message="The flow run was cancelled."))
            raise
        except BaseException as error:
            job.done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(job, state)

    async def _run_llm_task(self, task: LlmTask[Any, Any], job: _Job) -> State[Any]:
        assert self.flow_query is not None
        query = await self.flow_query.get()
        needs = tuple(
            future.request_id
            for future in job.upstream
            if isinstance(future, HexgenFuture) and future.request_id is not None
        )
        state, request_id = await run_llm_task(
            task,
            query=query,
            task_run=job.task_run,
            parameters=job.parameters,
            wait_for=job.wait_for,
            needs=tuple(dict.fromkeys(needs)),
            last_event=job.last_event,
        )
        if state.is_completed():
            job.future.request_id = request_id
        return state

    def _run_in_thread(self, job: _Job) -> None:
        try:
            state: Any = run_task_sync(
                task=job.task,
                task_run_id=job.task_run_id,
                task_run=job.task_run,
                parameters=job.parameters,
                wait_for=job.wait_for,
                return_type="state",
                dependencies=job.dependencies,
                context={"cancel_event": job.cancel_event},
            )
        except BaseException as error:
            job.done.set_exception(error)
        else:
            self._end(job, state)

    # -- ending ---------------------------------------------------------------------------------

    def _end(self, job: _Job, state: State[Any]) -> None:
        if not job.done.done():
            job.done.set_result(state)

    def _forget(self, job: _Job) -> None:
        with self._jobs_lock:
            self._jobs.discard(job)

    def _cancel_on_loop(self, job: _Job) -> None:
        if job.running is not None:
            job.running.cancel()
        elif not job.upstream and job.task.isasync:
            self._end(job, Cancelled(message="The flow run was cancelled."))
        elif job.upstream and not all(_is_final(future) for future in job.upstream):
            self._report_cancelled(job)
            self._end(job, Cancelled(message="The flow run was cancelled."))

    def _report_cancelled(self, job: _Job) -> None:
        """Tell Prefect of a task that waited for upstream tasks and will never start."""
        if job.task_run is None:
            return
        before = job.task_run.state
        state: State[Any] = Cancelled(message="The flow run was cancelled.")
        state.state_details.task_run_id = job.task_run_id
        state.state_details.flow_run_id = job.task_run.flow_run_id
        job.task_run.state, job.task_run.state_id = state, state.id
        job.task_run.state_type, job.task_run.state_name = state.type, state.name
        job.context.run(
            emit_task_run_state_change_event,
            task_run=job.task_run,
            initial_state=before,
            validated_state=state,
            follows=job.last_event,
        )

    def _wait_for_jobs(self, timeout_s: float | None) -> None:
        with self._jobs_lock:
            waiting = [job.done for job in self._jobs]
        concurrent.futures.wait(waiting, timeout=timeout_s)

    async def _end_query(self, error: BaseException | None) -> None:
        assert self.flow_query is not None
        if error is None:
            await self.flow_query.end_with_flow_run()
        elif isinstance(error, asyncio.CancelledError):
            await self.flow_query.end("cancelled", reason="its flow run was cancelled")
        else:
            reason = str(error) or type(error).__name__
            await self.flow_query.end("failed", reason=f"its flow run ended: {reason}")


def _futures_in(values: Any) -> tuple[PrefectFuture[Any], ...]:
    found: list[PrefectFuture[Any]] = []

    def collect(value: Any) -> Any:
        if isinstance(value, PrefectFuture):
            found.append(value)
        return value

    visit_collection(values, visit_fn=collect, return_data=False, max_depth=-1)
    return tuple(found)


def _is_final(future: PrefectFuture[Any]) -> bool:
    wrapped = getattr(future, "wrapped_future", None)
    return wrapped is None or wrapped.done()
