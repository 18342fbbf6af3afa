"""Runs one LLM task: Prefect's own engine, with a lease on an instance around each attempt.

The lease is taken before an attempt begins and freed before the engine thinks about what follows:
no slot is held while a task waits for others, for its turn, or for its next retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_TASKS_REFRESH_CACHE
from prefect.states import Pending, Retrying
from prefect.types._datetime import now as prefect_now
from prefect.utilities.annotations import NotSet

from hexprefect.instances.errors import PromptRejected
from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.llm_task import LlmTask, set_current_request
from hexprefect.orchestration.prefect_internals import call_with_parameters, get_result_store
from hexprefect.orchestration.records import record_of, result_from
from hexprefect.orchestration.task_engine import HexgenTaskRunEngine
from hexprefect.queue import Query, QueuedRequest
from hexprefect.store import LeaseLost, StoreUnavailable

MOST_LOST_LEASES = 2


@dataclass
class LlmTaskRunEngine(HexgenTaskRunEngine):
    """One LLM task run."""

    get_query: Callable[[], Awaitable[Query]] = field(kw_only=True)
    needs: tuple[str, ...] = field(default=(), kw_only=True)
    request: QueuedRequest | None = field(default=None, init=False)
    """What this attempt holds or waits for; `None` between attempts."""
    request_id: str | None = field(default=None, init=False)

    # -- the lease ------------------------------------------------------------------------------

    async def take_lease(self) -> bool:
        """Submit the request and wait until it may run; whether Prefect was told of a wait.

        A process that was taken for dead, because its machine slept or stalled, submits again what
        it waited for: its flow runs go on where they were.

        Raises:
            QueryEnded: when the query has been ended by somebody else.
        """
        waited = False
        for lost in range(MOST_LOST_LEASES + 1):
            try:
                return await self.submit_and_wait() or waited
            except LeaseLost:
                waited, self.request = True, None
                if lost == MOST_LOST_LEASES:
                    raise
        raise AssertionError("unreachable")

    async def submit_and_wait(self) -> bool:
        """One submission of `take_lease`."""
        task: Any = self.task
        assert isinstance(task, LlmTask)
        query = await self.get_query()
        parameters = self.parameters or {}
        fingerprint = task.fingerprint(parameters)
        branch = task.branch(parameters)
        if self.request_id is None:
            self.request_id = query.request_id(task.stage, branch=branch, fingerprint=fingerprint)
        self.request = await query.submit(
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
        if request is None or request.reused is not None:
            return
        if request.grant is None:
            request.cancel_soon(f"{type(error).__name__}: {error}")
            return
        try:
            await request.fail(f"{type(error).__name__}: {error}")
        except LeaseLost:
            self.logger.warning("The lease had been given away before the attempt failed.")
        except StoreUnavailable as away:
            # The task run fails for its own reason; the store is told when it is back.
            self.logger.warning("The slot could not be freed yet: %s", away)

    async def is_cached(self) -> bool:
        """Whether Prefect has the task's result already, and no instance is needed."""
        refresh = self.task.refresh_cache
        if refresh is None:
            refresh = PREFECT_TASKS_REFRESH_CACHE.value()
        if self.task.cache_policy in (NotSet, NO_CACHE) or refresh:
            return False
        key = self.compute_transaction_key()
        return key is not None and await get_result_store().aexists(key)

    # -- the engine's steps ---------------------------------------------------------------------

    async def begin_run(self) -> None:
        """Wait for an instance in a pending state; Running begins when it takes the request."""
        try:
            if not await self.is_cached():
                await self.take_lease()
        except Exception as error:
            # Not a failure of the body: there is nothing to retry, and no Running state.
            await self.fail_without_retry(error)
            return
        await super().begin_run()

    async def fail_without_retry(self, error: Exception) -> None:
        """The request never ran: end the task run Failed, with that reason."""
        self.retries = self.task.retries
        await self.handle_exception(error)

    async def is_ready(self) -> bool:
        """As the base class; an attempt that gets no instance ends the task run Failed."""
        try:
            await self.wait_until_ready()
        except Exception as error:
            await self.fail_without_retry(error)
            return False
        return True

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
        """Run the body on its instance, or take a result that is there already."""
        if transaction.is_committed():
            if self.request is not None:
                # Another run has committed the same result while this one waited.
                await self.request.cancel("its result was found in Prefect's cache")
                self.request = None
            return await super().call_task_fn(transaction)
        result = await self.run_body()
        await self.handle_success(result, transaction=transaction)
        return result

    async def run_body(self) -> Any:
        """The body's result, recorded in the store before Prefect is told."""
        for lost in range(MOST_LOST_LEASES + 1):
            if self.request is None:
                # Its lease was lost, or a cached result expired between the look and the use.
                await self.take_lease()
            request = self.request
            assert request is not None
            if request.reused is not None:
                self.request = None
                return result_from(request.reused)
            set_current_request(request)
            try:
                result = await self.call_body(request)
                await self.end_attempt(request, result)
            except LeaseLost:
                self.request = None
                if lost == MOST_LOST_LEASES:
                    raise
                continue
            return result
        raise AssertionError("unreachable")

    async def end_attempt(self, request: QueuedRequest, result: Any) -> None:
        """Free the slot and keep the result; a returned Failed state is a failed attempt."""
        if isinstance(result, State) and not result.is_completed():
            await request.fail(f"the task returned {result.name}: {result.message or 'no message'}")
        else:
            await request.finish(record_of(result))
        self.request = None

    async def call_body(self, request: QueuedRequest) -> Any:
        """The task's function; a synchronous one runs in a thread, so that it blocks nobody."""
        parameters = self.parameters or {}
        if self.task.isasync:
            body: Any = call_with_parameters(self.task.fn, parameters)
            return await body
        call = partial(copy_context().run, call_with_parameters, self.task.fn, parameters)
        background = background_loop()
        try:
            return await background.loop.run_in_executor(background.threads, call)
        except asyncio.CancelledError:
            # The thread cannot be interrupted, but what it waits for can.
            request.stop_blocking_calls()
            raise

    async def handle_exception(self, exc: Exception) -> None:
        """Free the slot, then let Prefect decide about a retry; a prompt at fault gets none."""
        await self.give_up_lease(exc)
        if isinstance(exc, PromptRejected):
            self.retries = self.task.retries
        await super().handle_exception(exc)

    async def handle_timeout(self, exc: TimeoutError) -> None:
        """As `handle_exception`."""
        await self.give_up_lease(exc)
        await super().handle_timeout(exc)

    async def handle_crash(self, exc: BaseException) -> None:
        """Cancelled by its flow run, or worse: the request ends, and its slot is free."""
        if self.request is not None:
            cancelled = isinstance(exc, asyncio.CancelledError)
            why = "its flow run was cancelled" if cancelled else f"{type(exc).__name__}: {exc}"
            self.request.cancel_soon(why)
            self.request = None
        await super().handle_crash(exc)
