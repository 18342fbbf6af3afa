"""Task runs that were left open: which are ended, when, and how."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed, Crashed, Pending, Running

from hexprefect.orchestration.task_ends import known_end, remember_end
from hexprefect.orchestration.worker_task_runs import (
    LOOK_AFTER_S,
    EndedFlowRuns,
    end_open_task_runs,
)


class Server:
    """Knows open task runs of flow runs, and takes their ends."""

    def __init__(self, **open_of: list[TaskRun]) -> None:
        self.open = {task_run.id: task_run for runs in open_of.values() for task_run in runs}
        self.ends: dict[UUID, State[Any]] = {}
        self.asked: list[FlowRunFilter] = []
        self.gone: set[UUID] = set()

    async def read_task_runs(self, *, flow_run_filter: Any, limit: int, **_: Any) -> list[TaskRun]:
        self.asked.append(flow_run_filter)
        wanted = set(flow_run_filter.id.any_)
        return [run for run in self.open.values() if run.flow_run_id in wanted][:limit]

    async def set_task_run_state(self, id: UUID, state: State[Any], *, force: bool) -> None:
        assert force, "no rule may keep a run open"
        if id in self.gone:
            raise ObjectNotFound(Exception("deleted"))
        self.ends[id] = state
        del self.open[id]


def task_runs(flow_run_id: UUID, count: int, state: State[Any] | None = None) -> list[TaskRun]:
    return [
        TaskRun(
            task_key="t",
            dynamic_key=str(number),
            flow_run_id=flow_run_id,
            state=state or Running(),
        )
        for number in range(count)
    ]


async def test_what_is_open_ends_as_crashed_with_the_reason() -> None:
    ours, theirs = uuid4(), uuid4()
    runs, others = task_runs(ours, 450, Pending()), task_runs(theirs, 3)
    server: Any = Server(ours=runs, theirs=others)
    assert await end_open_task_runs(server, [ours], why="its worker is gone") == 450
    assert set(server.ends) == {run.id for run in runs}
    assert {state.name for state in server.ends.values()} == {"Crashed"}
    assert {state.message for state in server.ends.values()} == {"its worker is gone"}
    assert await end_open_task_runs(server, [ours], why="again") == 0


async def test_what_ended_here_ends_as_it_did() -> None:
    flow_run = uuid4()
    known, unknown = task_runs(flow_run, 2)
    remember_end(known.id, Completed(message="done", data="a large result"))
    remember_end(unknown.id, Running())
    server: Any = Server(runs=[known, unknown])
    await end_open_task_runs(server, [flow_run], why="nobody knows")
    assert (server.ends[known.id].name, server.ends[known.id].message) == ("Completed", "done")
    assert server.ends[known.id].data is None, "its result is not this one's to tell"
    assert server.ends[unknown.id].name == "Crashed"


async def test_task_runs_that_cannot_be_ended_are_asked_for_only_once() -> None:
    flow_run = uuid4()
    runs = task_runs(flow_run, 250)
    server: Any = Server(runs=runs)
    server.gone = {run.id for run in runs}
    assert await end_open_task_runs(server, [flow_run], why="x") == 200
    assert server.ends == {}


def test_a_crash_is_remembered_and_the_oldest_end_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hexprefect.orchestration.task_ends.REMEMBERED", 2)
    first, second, third = uuid4(), uuid4(), uuid4()
    for id in (first, second, third):
        remember_end(id, Crashed(message=str(id)))
    assert known_end(first) is None
    assert getattr(known_end(third), "message", None) == str(third)


async def test_flow_runs_are_looked_at_once_some_time_after_their_end() -> None:
    now = 0.0
    ended = EndedFlowRuns(clock=lambda: now)
    early, late, running = uuid4(), uuid4(), uuid4()
    server: Any = Server(a=task_runs(early, 1), b=task_runs(late, 1), c=task_runs(running, 1))
    ended.add(early)
    ended.add(running)
    now = 10.0
    ended.add(late)
    assert await ended.look(server, running=()) == 0
    assert server.asked == [], "nothing is due"
    now = LOOK_AFTER_S + 1
    assert await ended.look(server, running={running}) == 1
    assert server.asked[0].state is not None, "one that runs elsewhere by now is left alone"
    now = LOOK_AFTER_S + 11
    assert await ended.look(server, running={running}) == 1
    assert await ended.look(server, running=()) == 1
    asked = len(server.asked)
    assert await ended.look(server, running=()) == 0
    assert len(server.asked) == asked


async def test_a_server_that_is_away_is_asked_again() -> None:
    ended = EndedFlowRuns(clock=iter([0.0, 100.0, 101.0]).__next__)
    flow_run = uuid4()
    ended.add(flow_run)
    server: Any = Server(a=task_runs(flow_run, 1))

    async def away(**_: Any) -> list[TaskRun]:
        raise ConnectionError

    reads, server.read_task_runs = server.read_task_runs, away
    with pytest.raises(ConnectionError):
        await ended.look(server, running=())
    server.read_task_runs = reads
    assert await ended.look(server, running=()) == 1
