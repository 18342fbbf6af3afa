"""Runs one LLM task: Prefect's own engine, with a lease on an instance around each attempt.

The lease is taken before an attempt begins and freed before the engine thinks about what follows:
no slot is held while a task waits for others, for its turn, or for its next retry.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled, Pending, Retrying
from prefect.types._datetime import now as prefect_now
from prefect.utilities.annotations import NotSet

from hexprefect.orchestration.llm_task import LlmTask, set_current_request
from hexprefect.orchestration.prefect_internals import (
    AsyncTaskRunEngine,
    call_with_parameters,
    get_result_store,
)
from hexprefect.orchestration.records import record_of, result_from
from hexprefect.queue import Query, QueuedRequest
from hexprefect.store import LeaseLost

MOST_LOST_LEASES = 2


@dataclass
class LlmTaskRunEngine(AsyncTaskRunEngine[Any, Any]):
    """One LLM task run."""

    query: Query | None = None
    needs: tuple[str, ...] = ()
    request: QueuedRequest | None = field(default=None, init=False)
    request_id: str | None = field(default=None, init=False)
    cancelled: bool = field(default=False, init=False)

    # -- the lease ------------------------------------------------------------------------------

    async def take_lease(self) -> bool:
        """Submit the request and wait until it may run; whether Prefect was told of a wait."""
        assert self.query is not None
        task: Any = self.task
        assert isinstance(task, LlmTask)
        parameters = self.parameters or {}
        fingerprint = task.fingerprint(parameters)
        branch = task.branch(parameters)
        if self.request_id is None:
            self.request_id = self.query.request_id(
                task.stage, branch=branch, fingerprint=fingerprint
            )
        self.request = await self.query.submit(
            task.stage,
            task.size(parameters),
            fingerprint=fingerprint,
            branch=branch,
            needs=self.needs,
            id=self.request_id,
        )
        waits = self.request.reused is None and self.request.grant is None
        if waits:
            where = self.request.instance or "an instance to become available"
            await self.set_state(
                Pending(name="AwaitingInstance", message=f"Waiting for {where}."), force=True
            )
        if self.request.reused is None:
            await self.request.admitted()
        return waits

    async def give_up_lease(self, error: BaseException) -> None:
        """End a failed attempt and free its slot, before anything else is done about it."""
        request, self.request = self.request, None
        if request is not None and request.grant is not None:
            try:
                await request.fail(f"{type(error).__name__}: {error}")
            except LeaseLost:
                self.logger.warning("The lease had been given away before the attempt failed.")

    async def is_cached(self) -> bool:
        """Whether Prefect has the task's result already, and no instance is needed."""
        policy = self.task.cache_policy
        if policy in (None, NotSet, NO_CACHE) or self.task.refresh_cache:
            return False
        key = self.compute_transaction_key()
        return key is not None and await get_result_store().aexists(key)

    # -- the engine's steps ---------------------------------------------------------------------

    async def begin_run(self) -> None:
        """Wait for an instance in a pending state; Running begins when it takes the request."""
        if not await self.is_cached():
            try:
                await self.take_lease()
            except Exception as error:
                # Not a failure of the body: there is nothing to retry, and no Running state.
                await super().begin_run()
                await self.fail_without_retry(error)
                return
        await super().begin_run()

    async def fail_without_retry(self, error: Exception) -> None:
        """The request never ran: end the task run Failed, with that reason."""
        self.retries = self.task.retries
        await super().handle_exception(error)

    async def wait_until_ready(self) -> None:
        """Before a retry: sleep without a lease, then take the next attempt's."""
        scheduled_time = self.state.state_details.scheduled_time
        if scheduled_time:
            await asyncio.sleep(max(0.0, (scheduled_time - prefect_now("UTC")).total_seconds()))
        if self.request is None and not await self.is_cached():
            immediate = not scheduled_time
            if await self.take_lease() and immediate:
                # Prefect has counted this attempt when it set the first of the two states.
                assert self.task_run is not None
                self.task_run.run_count -= 1
                await self.set_state(Retrying(), force=True)
        if scheduled_time:
            await self.set_state(Retrying(), force=True)
            await self.call_hooks()

    async def call_task_fn(self, transaction: Any) -> Any:
        """Run the body on its instance, or take the kept result of an earlier start."""
        if transaction.is_committed():
            return await super().call_task_fn(transaction)
        result = await self.run_body()
        await self.handle_success(result, transaction=transaction)
        return result

    async def run_body(self) -> Any:
        """The body's result, recorded in the store before Prefect is told."""
        for lost in range(MOST_LOST_LEASES + 1):
            request = self.request
            assert request is not None
            if request.reused is not None:
                return result_from(request.reused)
            set_current_request(request)
            result = await self.call_body()
            try:
                await request.finish(record_of(result))
            except LeaseLost:
                self.request = None
                if lost == MOST_LOST_LEASES:
                    raise
                await self.take_lease()
                continue
            return result
        raise AssertionError("unreachable")

    async def call_body(self) -> Any:
        """The task's function; a synchronous one runs in a thread, so that it blocks nobody."""
        parameters = self.parameters or {}
        if self.task.isasync:
            body: Any = call_with_parameters(self.task.fn, parameters)
            return await body
        call = partial(copy_context().run, call_with_parameters, self.task.fn, parameters)
        return await asyncio.to_thread(call)

    async def handle_exception(self, exc: Exception) -> None:
        """Free the slot, then let Prefect decide about a retry."""
        await self.give_up_lease(exc)
        await super().handle_exception(exc)

    async def handle_timeout(self, exc: TimeoutError) -> None:
        """As `handle_exception`."""
        await self.give_up_lease(exc)
        await super().handle_timeout(exc)

    async def handle_crash(self, exc: BaseException) -> None:
        """Cancelled by its flow run: the request ends, its slot is free, and Prefect sees why."""
        if self.request is not None:
            self.request.cancel_soon("its flow run was cancelled")
            self.request = None
        if not isinstance(exc, asyncio.CancelledError):
            await super().handle_crash(exc)
            return
        self.cancelled = True
        await self.set_state(Cancelled(message="The flow run was cancelled."), force=True)
        self._raised = exc


async def run_llm_task(
    task: LlmTask[Any, Any],
    *,
    query: Query,
    task_run: TaskRun,
    parameters: dict[str, Any],
    wait_for: Any,
    needs: tuple[str, ...],
    last_event: Any = None,
) -> tuple[State[Any], str | None]:
    """Run an LLM task to its end; the same loop as Prefect's `run_task_async`.

    Returns:
        The final state, and the id of its request where there was one.
    """
    engine = LlmTaskRunEngine(
        task=task,
        parameters=parameters,
        task_run=task_run,
        wait_for=wait_for,
        query=query,
        needs=needs,
        _last_event=last_event,
    )
    try:
        async with engine.start(task_run_id=task_run.id):
            while engine.is_running():
                try:
                    await engine.wait_until_ready()
                except Exception as error:
                    await engine.fail_without_retry(error)
                    break
                async with (
                    engine.asset_context(),
                    engine.run_context(),
                    engine.transaction_context() as transaction,
                ):
                    await engine.call_task_fn(transaction)
    except asyncio.CancelledError:
        if not engine.cancelled:
            raise
    return engine.state, engine.request_id
