"""`HexgenTaskRunner`: LLM tasks of all flow runs share one queue over unequal instances."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import RunInput, State
from prefect.futures import PrefectFuture
from prefect.task_runners import TaskRunner

from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.flow_query import FlowQuery, QueryDescription
from hexprefect.orchestration.future import HexgenFuture
from hexprefect.orchestration.llm_task import LlmTask, set_current_request
from hexprefect.orchestration.llm_task_engine import LlmTaskRunEngine
from hexprefect.orchestration.prefect_internals import (
    AsyncClientContext,
    FlowRunContext,
)
from hexprefect.orchestration.task_engine import HexgenSyncTaskRunEngine, HexgenTaskRunEngine
from hexprefect.orchestration.task_job import Job
from hexprefect.scheduling import Workflow
from hexprefect.settings import settings

CANCEL_TIMEOUT_S = 5.0
"""How long the end of a flow run waits until its cancelled tasks have told Prefect so."""


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
        self._jobs: dict[Job, None] = {}
        """In the order of their submission, until they have ended."""
        self._jobs_lock = threading.Lock()
        self._stopping = False
        self._left = False
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
        self._left = False
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
        self.leave(exc_value)
        super().__exit__(exc_type, exc_value, traceback)

    def leave(self, error: BaseException | None = None) -> None:
        """End with the flow run: wait for its tasks if it went well, else cancel them.

        It blocks, and only its first call does anything: whoever must not block calls it in a
        thread before the context ends.

        Args:
            error: what the flow has raised, if anything.
        """
        threads = self._threads
        if threads is None or self._left:
            return
        self._left = True
        goes_well = error is None and (
            self.flow_query is None or self.flow_query.flow_run_goes_well
        )
        # A flow inside an asynchronous task: waiting would stop the loop that it waits for.
        nested = background_loop().is_current()
        if nested and goes_well and self._jobs:
            self.logger.warning(
                "A flow that an asynchronous task runs has ended before %d of its tasks, which are "
                "cancelled: await their futures in the flow.",
                len(self._jobs),
            )
        if nested or not goes_well:
            self.cancel_all()
        if not nested:
            self._wait_for_jobs(None if goes_well else CANCEL_TIMEOUT_S)
        if self.flow_query is not None and self.flow_query.is_registered:
            ending = background_loop().run(self._end_query(self.flow_query, error))
            if not nested:
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    ending.result(CANCEL_TIMEOUT_S)
        self._threads = None
        threads.shutdown(wait=goes_well and not nested, cancel_futures=True)

    def cancel_all(self) -> None:
        """Cancel what this flow run has submitted and has not ended, and what it submits later.

        Prefect's engine also calls this on the flow's template, which runs nothing itself: other
        flow runs of the same process go on.
        """
        if not self._started:
            return
        with self._jobs_lock:
            self._stopping = True
            # Last submitted first: none is left to be told by the one that it waits for.
            jobs = [(job, job.started) for job in reversed(self._jobs)]
            for job, _ in jobs:
                job.cancel_event.set()
        for job, started in jobs:
            if started:
                background_loop().loop.call_soon_threadsafe(self._cancel_started, job)
            else:
                job.end_unstarted()

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
        if flow_context is not None and flow_context.task_runner is self:
            self.flow_query.belongs_to(flow_context.flow_run)
        job = Job(task, parameters, wait_for=wait_for, dependencies=dependencies)
        job.context.run(job.create_task_run)
        with self._jobs_lock:
            self._jobs[job] = None
            if self._stopping:
                job.cancel_event.set()
        job.done.add_done_callback(lambda _: self._forget(job))
        self._when_upstream_ended(job)
        return job.future

    def _when_upstream_ended(self, job: Job) -> None:
        """Start the job when its upstream futures are final: until then it holds nothing."""
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

    def _start(self, job: Job) -> None:
        threads = self._threads
        with self._jobs_lock:
            job.started = not job.is_cancelled and threads is not None
        if not job.started or threads is None:
            job.end_unstarted()
        elif job.in_thread:
            threads.submit(job.context.run, self._run_in_thread, job)
        else:
            background_loop().loop.call_soon_threadsafe(self._start_on_loop, job)

    # -- running --------------------------------------------------------------------------------

    def _start_on_loop(self, job: Job) -> None:
        if job.is_cancelled:
            job.end_unstarted()
            return
        job.running = background_loop().loop.create_task(
            self._run_on_loop(job), context=job.context
        )
        job.running.add_done_callback(partial(self._ended_on_loop, job))

    def _ended_on_loop(self, job: Job, running: asyncio.Task[None]) -> None:
        if running.cancelled():
            # Before its first step.
            job.end_unstarted()

    async def _run_on_loop(self, job: Job) -> None:
        try:
            # The flow's client belongs to the flow's loop; all jobs share the one of this loop.
            AsyncClientContext.__var__.set(await background_loop().client_context())
            # A task that an LLM task submitted has no part in its lease.
            set_current_request(None)
            if isinstance(job.task, LlmTask):
                state = await self._run_llm_task(job)
            else:
                engine = HexgenTaskRunEngine(**job.engine_arguments())
                state = await engine.run(job.task_run_id, job.dependencies)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and job.is_cancelled:
                # Before its engine had begun.
                job.end_unstarted()
            else:
                # Also `SystemExit`: the flow is told, and the loop serves other flow runs, too.
                job.end_with(error)
        else:
            job.end(state)

    async def _run_llm_task(self, job: Job) -> State[Any]:
        assert self.flow_query is not None
        needs = tuple(
            future.request_id
            for future in job.upstream
            if isinstance(future, HexgenFuture) and future.request_id is not None
        )
        engine = LlmTaskRunEngine(
            **job.engine_arguments(),
            get_query=self.flow_query.get,
            needs=tuple(dict.fromkeys(needs)),
        )
        state = await engine.run(job.task_run_id)
        if state.is_completed():
            job.future.request_id = engine.request_id
        return state

    def _run_in_thread(self, job: Job) -> None:
        set_current_request(None)
        try:
            engine = HexgenSyncTaskRunEngine(**job.engine_arguments())
            state = engine.run(job.task_run_id, job.dependencies)
        except BaseException as error:
            job.end_with(error)
        else:
            job.end(state)

    # -- ending ---------------------------------------------------------------------------------

    def _forget(self, job: Job) -> None:
        with self._jobs_lock:
            self._jobs.pop(job, None)

    def _cancel_started(self, job: Job) -> None:
        """On the loop. A thread cannot be interrupted: it has no further attempt."""
        if job.running is not None:
            job.running.cancel()

    def _wait_for_jobs(self, timeout_s: float | None) -> None:
        """Until all have ended, also those that they submit meanwhile, or the time is over.

        With a timeout they have been cancelled, and those in threads do not notice: nobody waits.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._jobs_lock:
                jobs = [job for job in self._jobs if deadline is None or not job.in_thread]
            left_s = None if deadline is None else deadline - time.monotonic()
            if not jobs or (left_s is not None and left_s <= 0):
                return
            concurrent.futures.wait([job.done for job in jobs], timeout=left_s)

    async def _end_query(self, query: FlowQuery, error: BaseException | None) -> None:
        try:
            await query.end_with_flow_run(error)
        except Exception:
            # The flow run has its own end; the store's upkeep ends the query when we are gone.
            self.logger.warning("The query could not be ended in the store.", exc_info=True)
