"""Task runs whose end Prefect's server never heard of: their worker died, or the server was away.

A task cannot outlive its flow run. What is still open when that has ended, or when another worker
takes it over, is ended here, so that nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import TERMINAL_STATES, State, StateType, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from hexprefect.orchestration.task_ends import known_end

LOOK_AFTER_S = 20.0
"""Events of a task run arrive within seconds of its end; the server may be busy."""
_FINAL = sorted(TERMINAL_STATES)
_OPEN = sorted(set(StateType) - TERMINAL_STATES)
_RUNS_A_PAGE = 200


async def end_open_task_runs(
    client: PrefectClient, flow_run_ids: Collection[UUID], *, why: str, ended: bool = False
) -> int:
    """End the open task runs of some flow runs: as they ended here, or else as crashed.

    Args:
        client: of the Prefect API.
        flow_run_ids: whose task runs.
        why: the message of those of which nothing is known.
        ended: leave those of flow runs alone that are not in a final state (any more).

    Returns:
        How many there were.
    """
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=_FINAL)) if ended else None
    seen: set[UUID] = set()
    while True:
        page = await client.read_task_runs(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(flow_run_ids)), state=state),
            task_run_filter=TaskRunFilter(
                state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_OPEN))
            ),
            limit=_RUNS_A_PAGE,
        )
        unseen = [task_run for task_run in page if task_run.id not in seen]
        for task_run in unseen:
            await _end(client, task_run, why)
        seen.update(task_run.id for task_run in unseen)
        if len(page) < _RUNS_A_PAGE or not unseen:
            return len(seen)


async def _end(client: PrefectClient, task_run: TaskRun, why: str) -> None:
    state: State[Any] = known_end(task_run.id) or Crashed(message=why)
    try:
        # A late event of an earlier state changes nothing: the server goes by the states' times.
        await client.set_task_run_state(task_run.id, state, force=True)
    except ObjectNotFound:
        return


class EndedFlowRuns:
    """Flow runs that have ended in this process, until their task runs have been looked at."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ended: dict[UUID, float] = {}

    def add(self, flow_run_id: UUID) -> None:
        """A flow run has ended; a second end of the same one counts anew."""
        self._ended[flow_run_id] = self._clock()

    async def look(self, client: PrefectClient, *, running: Collection[UUID]) -> int:
        """End what is open of those that ended some time ago; how many task runs there were."""
        until = self._clock() - LOOK_AFTER_S
        due = {id: at for id, at in self._ended.items() if at <= until and id not in running}
        if not due:
            return 0
        count = await end_open_task_runs(
            client, due, why="Its flow run has ended; its own end was never heard of.", ended=True
        )
        for id, at in due.items():
            # It may have run again, and ended, while the server was asked.
            if self._ended.get(id) == at:
                del self._ended[id]
        return count
