"""Runs one task: Prefect's own engines, which say Cancelled where that is the truth.

Prefect's engines report every cancelled task as a crash. Here the runner says beforehand that it is
going to cancel, so that people can tell a flow run that was stopped from one that broke.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from prefect.client.schemas.objects import RunInput, State
from prefect.states import Cancelled

from hexprefect.orchestration.prefect_internals import (
    AsyncTaskRunEngine,
    SyncTaskRunEngine,
    raise_if_flow_run_suspension_requested,
)

CANCELLED = "The flow run was cancelled."

Dependencies = dict[str, set[RunInput]]


@dataclass
class HexgenTaskRunEngine(AsyncTaskRunEngine[Any, Any]):
    """One task run on the shared event loop."""

    # Not in Prefect's `context`, for which its engine creates an API client for each task.
    cancel_event: threading.Event = field(default_factory=threading.Event, kw_only=True)

    def is_cancelled(self) -> bool:
        """Whether the runner has asked it to stop."""
        return self.cancel_event.is_set()

    async def handle_crash(self, exc: BaseException) -> None:
        """Cancelled where the runner asked for it; otherwise as Prefect has it."""
        if not (isinstance(exc, asyncio.CancelledError) and self.is_cancelled()):
            await super().handle_crash(exc)
            return
        await self.set_state(Cancelled(message=CANCELLED), force=True)
        self._raised = exc
        self._telemetry.end_span_on_failure(CANCELLED)

    async def run(
        self, task_run_id: uuid.UUID, dependencies: Dependencies | None = None
    ) -> State[Any]:
        """Run to the end, also to a cancelled one; the loop of Prefect's `run_task_async`.

        Returns:
            The final state.
        """
        try:
            async with self.start(task_run_id=task_run_id, dependencies=dependencies):
                while self.is_running():
                    if not await self.is_ready():
                        break
                    async with (
                        self.asset_context(),
                        self.run_context(),
                        self.transaction_context() as transaction,
                    ):
                        await self.call_task_fn(transaction)
                    raise_if_flow_run_suspension_requested()
        except asyncio.CancelledError:
            if self.task_run is None or not self.state.is_final():
                raise
        return self.state

    async def is_ready(self) -> bool:
        """Wait until the next attempt may begin; `False` when there will be none."""
        await self.wait_until_ready()
        return True


@dataclass
class HexgenSyncTaskRunEngine(SyncTaskRunEngine[Any, Any]):
    """One task run in a thread: it cannot be interrupted, but gets no further attempt."""

    cancel_event: threading.Event = field(default_factory=threading.Event, kw_only=True)

    def is_cancelled(self) -> bool:
        """Whether the runner has asked it to stop."""
        return self.cancel_event.is_set()

    def handle_crash(self, exc: BaseException) -> None:
        """Cancelled where the runner asked for it; otherwise as Prefect has it."""
        if not (isinstance(exc, asyncio.CancelledError) and self.is_cancelled()):
            super().handle_crash(exc)
            return
        self.set_state(Cancelled(message=CANCELLED), force=True)
        self._raised = exc
        self._telemetry.end_span_on_failure(CANCELLED)

    def run(self, task_run_id: uuid.UUID, dependencies: Dependencies | None = None) -> State[Any]:
        """The synchronous twin of `HexgenTaskRunEngine.run`."""
        try:
            with self.start(task_run_id=task_run_id, dependencies=dependencies):
                while self.is_running():
                    self.wait_until_ready()
                    with (
                        self.asset_context(),
                        self.run_context(),
                        self.transaction_context() as transaction,
                    ):
                        self.call_task_fn(transaction)
                    raise_if_flow_run_suspension_requested()
        except asyncio.CancelledError:
            if self.task_run is None or not self.state.is_final():
                raise
        return self.state
