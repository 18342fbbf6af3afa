"""What the warm worker does with every kind of flow and of deployment, against a real server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.flow_runs import resume_flow_run, suspend_flow_run

from tests.orchestration.worker_bench import Bench, state_of, until, worker_bench

FLOWS = """
import asyncio, json, os, time
from pathlib import Path
from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from hexprefect.orchestration.task_runner import HexgenTaskRunner

def note(path, **what):
    with open(path, "a") as file:
        file.write(json.dumps(what) + "\\n")

@flow
async def count_async(notes: str, to: int = 3):
    for number in range(to):
        await asyncio.sleep(0)
        note(notes, counted=number)
        yield number

@flow
def count_sync(notes: str, to: int = 3):
    for number in range(to):
        note(notes, counted=number)
        yield number

@flow
async def count_and_fail(notes: str):
    yield 1
    raise ValueError("no such number")

@flow
async def say(notes: str, word: str = "first"):
    note(notes, word=word, read=os.environ.get("HEXPREFECT_TEST_WORD"))

@task
async def wait_for(path: str):
    while not Path(path).exists():
        await asyncio.sleep(0.05)

@task
def wait_in_thread_for(path: str):
    while not Path(path).exists():
        time.sleep(0.05)

@flow(task_runner=HexgenTaskRunner())
async def leave_behind(notes: str, path: str):
    wait_for.submit(path)
    wait_in_thread_for.submit(path)
    note(notes, left=path)

@flow(task_runner=ThreadPoolTaskRunner())
async def leave_behind_in_threads(notes: str, path: str):
    wait_in_thread_for.submit(path)
    note(notes, left=path)

@flow(task_runner=HexgenTaskRunner())
async def return_future(notes: str, path: str):
    note(notes, left=path)
    return wait_for.submit(path)

@flow
async def touch(path: str):
    Path(path).touch()

@flow(task_runner=HexgenTaskRunner())
async def two_steps(notes: str, path: str):
    await wait_for.submit(path + ".first")
    note(notes, step=1)
    await wait_for.submit(path)
    note(notes, step=2)
"""


@pytest.fixture
async def bench(
    prefect_client: PrefectClient, prefect_server: Any, tmp_path: Path
) -> AsyncIterator[Bench]:
    environment = {**prefect_server.environment, "HEXPREFECT_TEST_WORD": "of the worker"}
    async with worker_bench(prefect_client, environment, tmp_path, FLOWS) as running:
        yield running


async def test_generator_flows_run_to_their_end(bench: Bench) -> None:
    """Nobody asks for their items: they are run for what they do, as in a process of their own."""
    await bench.start_worker("w1")
    assert state_of(await bench.run("count_async", notes=bench.notes))[0] == "Completed"
    assert state_of(await bench.run("count_sync", notes=bench.notes))[0] == "Completed"
    assert [note["counted"] for note in await bench.noted(6)] == [0, 1, 2, 0, 1, 2]
    name, message = state_of(await bench.run("count_and_fail", notes=bench.notes))
    assert name == "Failed"
    assert "no such number" in message


async def test_job_variables_that_the_worker_cannot_honour_are_refused(bench: Bench) -> None:
    await bench.start_worker("w1")
    same = {"env": {"HEXPREFECT_TEST_WORD": "of the worker"}}
    deployment = await bench.deploy(
        "say", job_variables={**same, "working_dir": str(bench.directory)}
    )
    parameters = {"notes": bench.notes}
    honoured = await bench.run_deployed(deployment, parameters=parameters)
    assert state_of(honoured)[0] == "Completed"
    assert (await bench.noted(1))[0]["read"] == "of the worker"

    other = {"env": {"HEXPREFECT_TEST_WORD": "a secret word"}}
    for wanted, named in (
        (other, "env.HEXPREFECT_TEST_WORD"),
        ({"working_dir": "/"}, "working_dir"),
    ):
        refused = await bench.run_deployed(deployment, parameters=parameters, job_variables=wanted)
        name, message = state_of(refused)
        assert name == "Crashed"
        assert named in message
        assert "`process` work pool" in message
        assert "a secret word" not in message
    assert len(await bench.noted(1)) == 1


async def test_a_changed_deployment_counts_from_its_next_run_on(bench: Bench) -> None:
    await bench.start_worker("w1")
    parameters = {"notes": bench.notes}
    await bench.run_deployed(await bench.deploy("say", parameters=parameters))
    # Another default of the deployment.
    await bench.run_deployed(
        await bench.deploy("say", parameters={**parameters, "word": "deployed"})
    )
    # Another file.
    (bench.directory / "other.py").write_text(FLOWS.replace('word: str = "first"', 'word="other"'))
    await bench.run_deployed(await bench.deploy("say", file="other.py", parameters=parameters))
    # Another default in the file.
    changed = FLOWS.replace('word: str = "first"', 'word: str = "changed"')
    (bench.directory / "other.py").write_text(changed)
    os.utime(bench.directory / "other.py", (time.time() + 2, time.time() + 2))
    await bench.run_deployed(await bench.deploy("say", file="other.py", parameters=parameters))
    assert [note["word"] for note in await bench.noted(4)] == [
        "first",
        "deployed",
        "other",
        "changed",
    ]


async def test_tasks_that_a_flow_leaves_behind_hold_up_nobody(bench: Bench) -> None:
    """They wait for a flow run on the same loop: if they blocked it, all would wait for ever."""
    await bench.start_worker("w1")
    entries = ("leave_behind", "leave_behind_in_threads", "return_future")
    path = str(bench.directory / "touched")
    left = [await bench.run(entry, wait=False, notes=bench.notes, path=path) for entry in entries]
    await bench.noted(len(entries))
    assert state_of(await bench.run("touch", path=path))[0] == "Completed"
    for flow_run in left:
        assert state_of(await bench.end_of(flow_run))[0] == "Completed"


@pytest.mark.slow
async def test_a_suspended_flow_run_stops_at_its_next_task_and_can_be_resumed(
    bench: Bench,
) -> None:
    await bench.start_worker("w1", cancel_poll_seconds=0.5)
    path = bench.directory / "gate"
    flow_run = await bench.run("two_steps", wait=False, notes=bench.notes, path=str(path))
    await until_running(bench, flow_run)
    await suspend_flow_run(flow_run_id=flow_run.id)
    other = await bench.run("say", notes=bench.notes)
    assert state_of(other)[0] == "Completed", "the worker goes on"
    # Only now: it stops at its next task, and by now the worker has asked about it several times.
    (bench.directory / "gate.first").touch()

    async def left() -> bool:
        return "Suspended" in bench.log("w1") or "Paused" in bench.log("w1")

    await until(left)
    assert state_of(await bench.client.read_flow_run(flow_run.id))[0] == "Suspended"
    path.touch()
    await resume_flow_run(flow_run.id)
    assert state_of(await bench.end_of(flow_run))[0] == "Completed"
    steps = [note["step"] for note in await bench.noted(2) if "step" in note]
    assert steps[-1] == 2


async def test_the_task_runs_of_a_killed_worker_are_ended(bench: Bench) -> None:
    first = await bench.start_worker("w1")
    path = bench.directory / "gate"
    flow_run = await bench.run("two_steps", wait=False, notes=bench.notes, path=str(path))
    await until_running(bench, flow_run, tasks=1)
    first.kill()
    first.wait(timeout=10)
    await bench.start_worker("w1")
    (bench.directory / "gate.first").touch()
    path.touch()
    assert state_of(await bench.end_of(flow_run))[0] == "Completed"

    async def ended() -> list[str] | None:
        states = [str(run.state_name) for run in await task_runs(bench, flow_run)]
        all_ended = len(states) >= 3 and {*states} <= {"Completed", "Crashed"}
        return sorted(states) if all_ended else None

    assert await until(ended) == ["Completed", "Completed", "Crashed"]
    [crashed] = [run for run in await task_runs(bench, flow_run) if run.state_name == "Crashed"]
    assert "its worker 'w1' is gone" in str(crashed.state.message)


async def task_runs(bench: Bench, flow_run: FlowRun) -> list[Any]:
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
    return await bench.client.read_task_runs(flow_run_filter=wanted)


async def until_running(bench: Bench, flow_run: FlowRun, *, tasks: int = 0) -> None:
    async def running() -> bool:
        seen = await bench.client.read_flow_run(flow_run.id)
        if seen.state is None or not seen.state.is_running():
            return False
        return len([run for run in await task_runs(bench, flow_run) if run.state]) >= tasks

    await until(running)
    await asyncio.sleep(0)
