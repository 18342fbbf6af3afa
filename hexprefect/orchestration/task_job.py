"""One submitted task of a flow run, from its submission until its future is final."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any

from prefect import Task
from prefect.client.schemas.objects import RunInput, State, TaskRun
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Pending
from prefect.utilities.annotations import quote

from hexprefect.orchestration.future import HexgenFuture
from hexprefect.orchestration.llm_task import LlmTask
from hexprefect.orchestration.prefect_internals import (
    StopVisiting,
    create_task_run_locally,
    emit_task_run_state_change_event,
    uuid7,
    visit_collection,
)
from hexprefect.orchestration.task_ends import remember_end
from hexprefect.orchestration.task_engine import CANCELLED


class Job:
    """What the runner knows of one task. Create it where the task is submitted.

    Its context is the submitter's: tags, flow run and parent task are found in it.
    """

    def __init__(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        *,
        wait_for: Iterable[PrefectFuture[Any]] | None,
        dependencies: dict[str, set[RunInput]] | None,
    ) -> None:
        self.task = task
        self.parameters = parameters
        self.wait_for = None if wait_for is None else list(wait_for)
        self.dependencies = dependencies
        self.task_run_id = uuid7()
        self.context = copy_context()
        self.upstream = futures_in([parameters, self.wait_for])
        self.done: Future[State[Any]] = Future()
        self.done.set_running_or_notify_cancel()
        self.future: HexgenFuture[Any] = HexgenFuture(self.task_run_id, self.done)
        self.cancel_event = threading.Event()
        self.started = False
        """It has been handed to the loop or to a thread, which will end it."""
        self.running: asyncio.Task[None] | None = None
        self._task_run: TaskRun | None = None
        self._last_event: Any = None
        self._told_end = threading.Lock()

    @property
    def in_thread(self) -> bool:
        """Whether it runs in a thread of its own, where it cannot be interrupted."""
        return not (self.task.isasync or isinstance(self.task, LlmTask))

    @property
    def is_cancelled(self) -> bool:
        """Whether the runner has asked it to stop."""
        return self.cancel_event.is_set()

    def create_task_run(self) -> None:
        """Tell Prefect of the task at once: its engine may begin much later."""
        task_run = create_task_run_locally(
            self.task,
            self.task_run_id,
            self.parameters,
            wait_for=self.wait_for,
            extra_task_inputs=self.dependencies,
        )
        # Prefect takes an upstream task that runs now for a parent, as if it had submitted this.
        needed = {getattr(future, "task_run_id", None) for future in self.upstream}
        if parents := task_run.task_inputs.pop("__parents__", None):
            real = [parent for parent in parents if getattr(parent, "id", None) not in needed]
            task_run.task_inputs.update({"__parents__": real} if real else {})
        if self.upstream:
            message = "Waiting for upstream tasks."
            _set_state(task_run, Pending(name="AwaitingUpstream", message=message))
        self._last_event = emit_task_run_state_change_event(
            task_run=task_run, initial_state=None, validated_state=_state_of(task_run)
        )
        self._task_run = self.future.task_run = task_run

    def engine_arguments(self) -> dict[str, Any]:
        """What every engine that runs the task needs."""
        return {
            "task": self.task,
            "task_run": self._task_run,
            "parameters": self.parameters,
            "wait_for": self.wait_for,
            "cancel_event": self.cancel_event,
            "_last_event": self._last_event,
        }

    def end(self, state: State[Any]) -> None:
        """The engine has ended, in this state."""
        remember_end(self.task_run_id, state)
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.done.set_result(state)

    def end_with(self, error: BaseException) -> None:
        """The engine has raised: its future will, too."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.done.set_exception(error)

    def end_unstarted(self) -> None:
        """Tell Prefect and those who wait of a task that will never start. Safe to call twice."""
        if not self._told_end.acquire(blocking=False):
            return
        state: State[Any] = Cancelled(message=CANCELLED)
        state.state_details.task_run_id = self.task_run_id
        if self._task_run is not None:
            before = self._task_run.state
            _set_state(self._task_run, state)
            # Of a copy: the context itself may be entered in another thread.
            self.context.copy().run(
                emit_task_run_state_change_event,
                task_run=self._task_run,
                initial_state=before,
                validated_state=state,
                follows=self._last_event,
            )
        self.end(state)


def futures_in(values: Any) -> tuple[PrefectFuture[Any], ...]:
    """The futures that Prefect's engine will resolve: at any depth, but not inside `quote`."""
    found: dict[int, PrefectFuture[Any]] = {}

    def collect(value: Any, context: dict[str, Any]) -> Any:
        if isinstance(context.get("annotation"), quote):
            raise StopVisiting
        if isinstance(value, PrefectFuture):
            found[id(value)] = value
        return value

    visit_collection(values, visit_fn=collect, return_data=False, max_depth=-1, context={})
    return tuple(found.values())


def _set_state(task_run: TaskRun, state: State[Any]) -> None:
    state.state_details.task_run_id = task_run.id
    state.state_details.flow_run_id = task_run.flow_run_id
    task_run.state, task_run.state_id = state, state.id
    task_run.state_type, task_run.state_name = state.type, state.name


def _state_of(task_run: TaskRun) -> State[Any]:
    assert task_run.state is not None
    return task_run.state
