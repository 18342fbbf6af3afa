"""The future that `task.submit` returns: Prefect's own, and awaitable."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectConcurrentFuture

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.prefect_internals import raise_if_flow_run_suspension_requested

R = TypeVar("R")


class WouldDeadlock(HexprefectError):
    """A task on the shared event loop would block it with `.result()` or `.wait()`."""


class HexgenFuture(PrefectConcurrentFuture[R]):
    """As Prefect's, with `await future` for asynchronous flows and tasks.

    `.result()` and `.wait()` block their thread, as they do with Prefect's own runner. All
    asynchronous tasks share one event loop: a task on it that blocked for another could wait for
    ever, so that they raise `WouldDeadlock` there and name the remedy.
    """

    def __init__(self, task_run_id: uuid.UUID, wrapped_future: Future[Any]) -> None:
        super().__init__(task_run_id=task_run_id, wrapped_future=wrapped_future)
        self.request_id: str | None = None
        """Id of the LLM request in the store, once it has finished."""
        self.task_run: TaskRun | None = None
        """As this process knows it: newer than what Prefect's server has heard of."""

    def __await__(self) -> Generator[Any, None, R]:
        return self.aresult().__await__()

    async def aresult(self, *, raise_on_failure: bool = True) -> R:
        """The task's result, without blocking the loop.

        Raises:
            Exception: what the task raised, unless `raise_on_failure` is false.
        """
        state = await self.astate()
        result: Any = await state.aresult(raise_on_failure=raise_on_failure)
        return cast(R, result)

    async def astate(self) -> State[R]:
        """The task run's final state, without blocking the loop."""
        if self._final_state is None:
            # Shielded: one awaiting coroutine that is cancelled does not cancel the task.
            state: Any = await asyncio.shield(asyncio.wrap_future(self._wrapped_future))
            self._final_state = state
        raise_if_flow_run_suspension_requested()
        return self._final_state

    @property
    def state(self) -> State[R]:
        """The state now, without asking Prefect's server, which hears of it later."""
        done = self._wrapped_future
        if self._final_state is None and done.done() and done.exception() is None:
            ended: Any = done.result()
            self._final_state = ended
        if self._final_state is None and self.task_run is not None and self.task_run.state:
            return self.task_run.state
        return super().state

    def wait(self, timeout: float | None = None) -> None:
        """Block until the task has ended, or `timeout` seconds."""
        self._refuse_to_deadlock()
        super().wait(timeout)

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> R:
        """Block until the task has ended, and return its result."""
        self._refuse_to_deadlock()
        return super().result(timeout=timeout, raise_on_failure=raise_on_failure)

    def _add_prefect_done_callback(self, fn: Callable[[Any], None]) -> None:
        # What `as_completed`, `wait` and the results of lists of futures block on.
        self._refuse_to_deadlock()
        super()._add_prefect_done_callback(fn)

    def _refuse_to_deadlock(self) -> None:
        if not self._wrapped_future.done() and background_loop().is_current():
            raise WouldDeadlock(
                "This asynchronous task waits for another in a way that blocks both.",
                remedy="Write `await future` instead of `future.result()` or `future.wait()`.",
            )
