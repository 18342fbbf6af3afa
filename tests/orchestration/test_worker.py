"""The warm worker against a real Prefect server: runs, failures, cancellation, death, shutdown."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate

from hexprefect.orchestration.pools_apply import read_templates
from tests.orchestration.worker_bench import Bench, state_of, until, worker_bench

FLOWS = """
import asyncio, json, os, sys, time
from pathlib import Path
from prefect import flow, task

def note(path, **what):
    with open(path, "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "at": time.monotonic(), **what}) + "\\n")

@flow
async def add(a: int, b: int = 2, notes: str = ""):
    if notes:
        note(notes, sum=a + b)
    return a + b

@flow
def add_sync(a: int, notes: str):
    note(notes, sum=a)

@flow
async def fail():
    raise ValueError("no such table: orders")

@flow
async def leave():
    sys.exit(3)

@flow
async def leave_from_child():
    async def child():
        sys.exit(4)
    other = asyncio.create_task(child())
    await asyncio.sleep(1)
    return "survived"

def cancelled(flow, flow_run, state):
    note(flow_run.parameters["notes"], hook=state.type.value)

@flow(on_cancellation=[cancelled])
async def sleep(seconds: float, notes: str):
    note(notes, start=seconds)
    try:
        await asyncio.sleep(seconds)
        note(notes, end=seconds)
    except BaseException as error:
        note(notes, interrupted=type(error).__name__)
        raise

@flow
async def stubborn(notes: str):
    note(notes, start=0)
    end = time.monotonic() + 6
    while time.monotonic() < end:
        try:
            await asyncio.sleep(6)
        except asyncio.CancelledError:
            pass
    note(notes, end=0)

@flow(on_cancellation=[cancelled])
def sleep_sync(seconds: float, notes: str):
    note(notes, start=seconds)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    note(notes, end=seconds)

@flow
async def block(seconds: float):
    time.sleep(seconds)

@flow
async def kill_worker():
    os.kill(os.getpid(), 9)

@task
async def double(x):
    return 2 * x

@flow
async def with_tasks(notes: str):
    futures = [double.submit(n) for n in range(5)]
    note(notes, doubled=[await asyncio.to_thread(f.result) for f in futures])
"""


@pytest.fixture
async def bench(
    prefect_client: PrefectClient, prefect_server: Any, tmp_path: Path
) -> AsyncIterator[Bench]:
    async with worker_bench(prefect_client, prefect_server.environment, tmp_path, FLOWS) as running:
        yield running


async def test_async_and_sync_flows_run_in_the_workers_own_process(bench: Bench) -> None:
    worker = await bench.start_worker("w1")
    done = await bench.run("add", a=1, notes=bench.notes)
    assert state_of(done)[0] == "Completed"
    assert state_of(await bench.run("add_sync", a=5, notes=bench.notes))[0] == "Completed"
    assert state_of(await bench.run("with_tasks", notes=bench.notes))[0] == "Completed"
    notes = await bench.noted(3)
    assert [(note["pid"], note.get("sum")) for note in notes[:2]] == [
        (worker.pid, 3),
        (worker.pid, 5),
    ]
    assert notes[2]["doubled"] == [0, 2, 4, 6, 8]
    assert (done.infrastructure_pid or "").startswith("hexgen:")
    assert bench.log("w1").count("Loaded the flow") == 3
    await bench.run("add", a=1)
    assert bench.log("w1").count("Loaded the flow") == 3


async def test_what_ends_one_flow_run_leaves_the_others_alone(bench: Bench) -> None:
    worker = await bench.start_worker("w1")
    bystander = await bench.run("sleep", wait=False, seconds=6, notes=bench.notes)
    await bench.noted(1)
    failed = await bench.run("fail")
    left = await bench.run("leave")
    child = await bench.run("leave_from_child")
    lost = await bench.run("no_such_flow")
    wrong = await bench.run("add", a="one")
    assert state_of(failed)[0] == "Failed"
    assert "no such table" in state_of(failed)[1]
    assert state_of(left)[0] == "Crashed"
    assert state_of(child)[0] in ("Completed", "Crashed")
    assert state_of(lost)[0] == "Crashed"
    assert "no_such_flow" in state_of(lost)[1]
    assert state_of(wrong)[0] == "Failed"
    assert "validation" in state_of(wrong)[1].lower()
    assert state_of(await bench.end_of(bystander))[0] == "Completed"
    assert worker.poll() is None


@pytest.mark.parametrize("entry", ["sleep", "sleep_sync"])
async def test_a_cancelled_run_ends_cancelled_and_runs_its_hook(bench: Bench, entry: str) -> None:
    await bench.start_worker("w1")
    other = await bench.run("add", wait=False, a=1)
    flow_run = await bench.run(entry, wait=False, seconds=600, notes=bench.notes)
    await bench.noted(1)
    await bench.cancel(flow_run)
    ended = await bench.end_of(flow_run)
    assert state_of(ended)[0] == "Cancelled"
    noted = await bench.noted(3 if entry == "sleep" else 2)
    assert noted[-1].get("hook") == "CANCELLING"
    assert state_of(await bench.end_of(other))[0] == "Completed"
    history = await bench.client.read_flow_run_states(flow_run.id)
    assert "CRASHED" not in {state.type.value for state in history}


async def test_a_run_that_swallows_its_cancellation_is_cancelled_all_the_same(
    bench: Bench,
) -> None:
    await bench.start_worker("w1")
    flow_run = await bench.run("stubborn", wait=False, notes=bench.notes)
    await bench.noted(1)
    await bench.cancel(flow_run)
    assert state_of(await bench.end_of(flow_run))[0] == "Cancelled"
    await bench.noted(2)
    assert state_of(await bench.run("add", a=1))[0] == "Completed"
    assert state_of(await bench.client.read_flow_run(flow_run.id))[0] == "Cancelled"


async def test_blocking_code_is_reported_with_the_name_and_the_line(bench: Bench) -> None:
    await bench.start_worker("w1", blocked_seconds=0.5)
    flow_run = await bench.run("block", seconds=2.0)
    assert state_of(flow_run)[0] == "Completed"

    async def reported() -> bool:
        return f"Flow run '{flow_run.name}' has blocked the event loop" in bench.log("w1").replace(
            "\n", " "
        )

    await until(reported)
    assert "time.sleep(seconds)" in bench.log("w1")


async def test_runs_of_a_killed_worker_complete_on_another(bench: Bench) -> None:
    first = await bench.start_worker("w1")
    flow_run = await bench.run("sleep", wait=False, seconds=4, notes=bench.notes)
    await bench.noted(1)
    first.kill()
    first.wait(timeout=10)
    second = await bench.start_worker("w2")
    ended = await bench.end_of(flow_run)
    assert state_of(ended)[0] == "Completed"
    pids = {note["pid"] for note in await bench.noted(3) if "start" in note}
    assert pids == {first.pid, second.pid}
    assert ended.labels["hexprefect.recoveries"] == 1
    names = [state.name for state in await bench.client.read_flow_run_states(flow_run.id)]
    assert "AwaitingRetry" in names


async def test_a_cancelled_run_of_a_killed_worker_ends_cancelled(bench: Bench) -> None:
    first = await bench.start_worker("w1")
    flow_run = await bench.run("sleep", wait=False, seconds=600, notes=bench.notes)
    await bench.noted(1)
    first.kill()
    first.wait(timeout=10)
    await bench.cancel(flow_run)
    await bench.start_worker("w2")
    assert state_of(await bench.end_of(flow_run))[0] == "Cancelled"


async def test_a_run_that_kills_each_worker_is_given_up(bench: Bench) -> None:
    await bench.start_worker("w1", max_recoveries=0)
    flow_run = await bench.run("kill_worker", wait=False)
    await bench.start_worker("w2", max_recoveries=0)
    name, message = state_of(await bench.end_of(flow_run))
    assert name == "Crashed"
    assert "Given up" in message


async def test_a_stopped_worker_finishes_what_it_can_and_reschedules_the_rest(
    bench: Bench,
) -> None:
    first = await bench.start_worker("w1", shutdown_seconds=3)
    long = await bench.run("sleep", wait=False, seconds=20, notes=bench.notes)
    await bench.noted(1)
    short = await bench.run("sleep", wait=False, seconds=1.5, notes=bench.notes)
    await bench.noted(2)
    first.send_signal(signal.SIGTERM)
    await asyncio.to_thread(first.wait, 60)
    assert state_of(await bench.client.read_flow_run(short.id))[0] == "Completed"
    assert state_of(await bench.client.read_flow_run(long.id))[0] == "AwaitingRetry"
    await bench.start_worker("w2")
    assert state_of(await bench.end_of(long))[0] == "Completed"


async def test_no_more_runs_at_once_than_the_limit(bench: Bench) -> None:
    await bench.start_worker("w1", limit=2)
    runs = [await bench.run("sleep", wait=False, seconds=4, notes=bench.notes) for _ in range(4)]
    for flow_run in runs:
        assert state_of(await bench.end_of(flow_run))[0] == "Completed"
    running = most = 0
    for note in sorted(await bench.noted(8), key=lambda note: note["at"]):
        running += 1 if "start" in note else -1
        most = max(most, running)
    assert most == 2


async def test_changed_code_is_loaded_again(bench: Bench) -> None:
    await bench.start_worker("w1")
    await bench.run("add", a=1, notes=bench.notes)
    changed = FLOWS.replace("sum=a + b", "sum=a * 100")
    (bench.directory / "flows.py").write_text(changed)
    os.utime(bench.directory / "flows.py", (time.time() + 2, time.time() + 2))
    await bench.run("add", a=1, notes=bench.notes)
    assert [note["sum"] for note in await bench.noted(2)] == [3, 100]


async def test_two_living_workers_of_one_name_are_kept_apart(bench: Bench) -> None:
    await bench.start_worker("same")
    (bench.directory / "same.log").rename(bench.directory / "first.log")
    await bench.start_worker("same")
    names = {w.name for w in await bench.client.read_workers_for_work_pool(bench.pool)}
    assert len(names) == 2
    assert "same" in names


@pytest.mark.benchmark
@pytest.mark.timeout(600)
async def test_a_warm_worker_starts_runs_sooner_than_a_process_worker(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scheduled → Running, by the server's own times, both workers polling every second."""

    async def waits(count: int) -> list[float]:
        found = []
        for _ in range(count):
            done = await bench.run("add", a=1)
            states = await bench.client.read_flow_run_states(done.id)
            at = {state.type.value: state.timestamp for state in states}
            found.append((at["RUNNING"] - at["SCHEDULED"]).total_seconds())
        return sorted(found)

    await bench.start_worker("warm")
    await bench.run("add", a=1)
    warm = await waits(10)
    bench.workers[0].terminate()
    await asyncio.to_thread(bench.workers[0].wait, 60)

    pool = f"{bench.pool}-process"
    await bench.client.create_work_pool(
        WorkPoolCreate(name=pool, type="process", base_job_template=read_templates()["text2sql"])
    )
    bench.environment = {**bench.environment, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    first_pool, bench.pool = bench.pool, pool
    await bench.start_worker("process")
    await bench.run("add", a=1)
    process = await waits(5)
    bench.workers[1].kill()
    bench.pool = first_pool
    await bench.client.delete_work_pool(pool)
    with capsys.disabled():
        print(
            f"\nScheduled → Running: warm median {warm[5]:.2f} s (most {warm[-1]:.2f} s), "
            f"process median {process[2]:.2f} s (most {process[-1]:.2f} s), "
            f"ratio {process[2] / warm[5]:.1f}"
        )
    assert process[2] > 2 * warm[5]
