"""A cancelled flow run stops generating, frees its slots, and shows every task as Cancelled."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.states import Cancelling, Pending

from hexprefect.orchestration.llm_task import llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import leases, tables
from tests.orchestration.bench import (
    Fleet,
    SeenByPrefect,
    StandIn,
    until,
    until_async,
)
from tests.orchestration.conftest import PrefectServer
from tests.orchestration.ordinary_and_llm_tasks import ask, ask_in_thread

FREE_WITHIN_S = 2.0
"""The one figure that the design promises; all else is only waited for."""


@task
async def sleep_long() -> None:
    await asyncio.sleep(60)


@task
async def never(value: Any) -> Any:
    return value


@pytest.fixture
def slots(fleet: Fleet) -> StandIn:
    instance = fleet.add("a", slots=2)
    instance.hold()
    return instance


def assert_idle_and_clean(fleet: Fleet) -> None:
    assert fleet.occupied() == 0
    assert fleet.backlog_s() == 0
    assert fleet.violations() == []


async def test_cancelling_a_flow_run_cancels_all_that_it_submitted(
    fleet: Fleet, slots: StandIn, seen_by_prefect: SeenByPrefect
) -> None:
    ids: dict[str, Any] = {}

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        running: Any = ask.submit("running")
        in_thread: Any = ask_in_thread.submit("in thread")
        await until_async(lambda: len(slots.running) == 2)
        queued: Any = ask.submit("queued")
        futures = {
            "running": running,
            "in thread": in_thread,
            "queued": queued,
            "dependent": ask.submit([running]),
            "dependent of dependents": never.submit([queued, running]),
            "ordinary": sleep_long.submit(),
        }
        ids.update({name: future.task_run_id for name, future in futures.items()})
        await until_async(lambda: fleet.view("a").waiting == 1)
        await asyncio.sleep(0.3)
        ready.set()
        await asyncio.gather(*(future.aresult() for future in futures.values()))

    ready = asyncio.Event()
    run = asyncio.create_task(asking())
    await ready.wait()
    cancelled_at = time.monotonic()
    run.cancel()
    await until_async(lambda: fleet.occupied() == 0)
    assert time.monotonic() - cancelled_at < FREE_WITHIN_S
    await until_async(lambda: sorted(slots.left) == ["in thread", "running"])
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.to_thread(seen_by_prefect.when, dict.fromkeys(ids.values(), "Cancelled"))
    [query] = fleet.rows(tables.queries)
    assert (query["state"], query["reason"]) == ("cancelled", "its flow run was cancelled")
    states = {row["state"] for row in fleet.rows(tables.requests)}
    assert states == {"cancelled"}
    assert slots.asked == ["running", "in thread"] or slots.asked == ["in thread", "running"]
    assert_idle_and_clean(fleet)


async def test_other_flow_runs_of_the_same_flow_go_on(
    fleet: Fleet, slots: StandIn, seen_by_prefect: SeenByPrefect
) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def asking(name: str) -> Any:
        futures: list[Any] = list(ask.map([f"{name}{number}" for number in range(3)]))
        return [await future for future in futures]

    doomed = asyncio.create_task(asking("doomed"))
    await until_async(lambda: len(slots.running) == 2)
    other = asyncio.create_task(asking("other"))
    await until_async(lambda: fleet.view("a").waiting == 4)
    doomed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doomed
    await until_async(lambda: [text[:5] for text in slots.running] == ["other", "other"])
    slots.release()
    assert await other == ["echo other0", "echo other1", "echo other2"]
    assert sum(text.startswith("doomed") for text in slots.asked) == 2
    assert_idle_and_clean(fleet)


async def test_a_cancelled_flow_does_not_wait_for_threads_that_cannot_be_interrupted(
    fleet: Fleet,
    slots: StandIn,
    seen_by_prefect: SeenByPrefect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hexprefect.orchestration.task_runner.CANCEL_TIMEOUT_S", 40.0)
    began, release, ended = threading.Event(), threading.Event(), threading.Event()
    attempts: list[int] = []
    futures: list[Any] = []

    @task(retries=3)
    def stubborn() -> None:
        attempts.append(1)
        began.set()
        release.wait(20)
        ended.set()
        raise ValueError("too late")

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        futures.append(stubborn.submit())
        await until_async(began.is_set)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await asking()
    assert not ended.is_set()
    release.set()
    await until_async(futures[0].wrapped_future.done)
    assert attempts == [1], "it has no further attempt"
    assert futures[0].state.name == "Cancelled"


async def test_tasks_that_are_cancelled_at_once_end_at_once(
    fleet: Fleet, slots: StandIn, seen_by_prefect: SeenByPrefect
) -> None:
    """The moment between submission and the first step of a task is no trap."""
    futures: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        for number in range(20):
            futures.append(ask.submit(number))
            futures.append(sleep_long.submit())
        raise asyncio.CancelledError

    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await asking()
    assert all(future.wrapped_future.done() for future in futures)
    assert {future.state.name for future in futures} == {"Cancelled"}
    assert time.monotonic() - began < 30
    await until_async(lambda: not slots.running)
    assert_idle_and_clean(fleet)


async def test_a_long_chain_of_waiting_tasks_is_cancelled_in_one_go(
    fleet: Fleet, slots: StandIn, seen_by_prefect: SeenByPrefect
) -> None:
    futures: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def chain() -> None:
        futures.append(ask.submit("first"))
        for _ in range(400):
            futures.append(never.submit(futures[-1]))
        await until_async(lambda: slots.running == ["first"])
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await chain()
    assert {future.state.name for future in futures} == {"Cancelled"}
    assert_idle_and_clean(fleet)


@pytest.mark.parametrize("how", ["raises", "times out"])
async def test_a_flow_that_fails_does_not_wait_for_what_it_no_longer_needs(
    fleet: Fleet, slots: StandIn, seen_by_prefect: SeenByPrefect, how: str
) -> None:
    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner(), timeout_seconds=2 if how == "times out" else None)
    async def failing() -> None:
        ids.extend(future.task_run_id for future in ask.map(range(3)))
        await until_async(lambda: len(slots.running) == 2)
        if how == "times out":
            await asyncio.sleep(30)
        raise ValueError("no more")

    state = await failing(return_state=True)
    assert state.is_failed()
    await until_async(lambda: len(slots.left) == 2)
    await asyncio.to_thread(seen_by_prefect.when, dict.fromkeys(ids, "Cancelled"))
    [query] = fleet.rows(tables.queries)
    assert query["state"] == "failed"
    assert ("timeout" if how == "times out" else "no more") in query["reason"]
    assert_idle_and_clean(fleet)


async def test_a_body_that_cancels_itself_is_a_crash_and_not_a_cancellation(
    fleet: Fleet, seen_by_prefect: SeenByPrefect
) -> None:
    fleet.add("a")
    ids: list[Any] = []

    @llm_task(stage="ask")
    async def gives_up() -> None:
        raise asyncio.CancelledError

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        future: Any = gives_up.submit()
        ids.append(future.task_run_id)
        state = await future.astate()
        return state.name, await ask.submit("next")

    assert await asking() == ("Crashed", "echo next")
    await asyncio.to_thread(seen_by_prefect.when, {ids[0]: "Crashed"})
    assert_idle_and_clean(fleet)


# -- in processes of their own ------------------------------------------------------------------

ASKING = """
import asyncio
from prefect import flow, task
from hexprefect.completion import Message, Prompt
from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner

@llm_task(stage="ask")
async def ask(text: str) -> str:
    prompt = Prompt(stage="ask", messages=(Message("user", text),), max_output_tokens=16)
    return (await current_request().complete(prompt)).text

@task
async def never(value):
    return value

@flow(task_runner=HexgenTaskRunner(slo_s=600))
async def asking(count: int = 3):
    futures = [ask.submit(str(number)) for number in range(count)]
    last = never.submit(futures)
    return await last
"""


@pytest.fixture
def entrypoint(tmp_path: Path) -> str:
    (tmp_path / "asking.py").write_text(textwrap.dedent(ASKING))
    return f"{tmp_path / 'asking.py'}:asking"


def start(
    server: PrefectServer, fleet: Fleet, log: Path, *command: str, **environment: str
) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            env={**server.environment, "HEXPREFECT_STORE": fleet.url, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


@pytest.mark.slow
async def test_cancelling_through_prefects_api_with_a_process_worker(
    fleet: Fleet,
    slots: StandIn,
    entrypoint: str,
    prefect_server: PrefectServer,
    prefect_client: PrefectClient,
    tmp_path: Path,
) -> None:
    seen = SeenByPrefect(prefect_server.url)
    pool = f"process-{uuid4().hex[:8]}"
    await prefect_client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    flow_id = await prefect_client.create_flow_from_name("asking")
    deployment = await prefect_client.create_deployment(
        flow_id=flow_id,
        name=pool,
        work_pool_name=pool,
        entrypoint=entrypoint,
        path=str(tmp_path),
        job_variables={"env": {"HEXPREFECT_STORE": fleet.url}},
    )
    flow_run = await prefect_client.create_flow_run_from_deployment(deployment)
    worker = start(
        prefect_server,
        fleet,
        tmp_path / "worker.log",
        *("-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"),
        PREFECT_WORKER_QUERY_SECONDS="1",
    )
    try:
        await until_async(lambda: len(slots.running) == 2, limit_s=120)
        runs = await asyncio.to_thread(until, lambda: _four(seen.task_runs(flow_run.id)))
        await prefect_client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
        await until_async(lambda: len(slots.left) == 2, limit_s=120)
        left_at = time.monotonic()
        await until_async(lambda: fleet.occupied() == 0)
        assert time.monotonic() - left_at < FREE_WITHIN_S
        await until_async(
            lambda: seen.flow_run(flow_run.id)["state_name"] == "Cancelled", limit_s=120
        )
        await asyncio.to_thread(seen.when, dict.fromkeys(runs, "Cancelled"))
    except AssertionError:
        print((tmp_path / "worker.log").read_text()[-6000:])
        raise
    finally:
        await asyncio.to_thread(end, worker)
        await prefect_client.delete_work_pool(pool)
    [query] = fleet.rows(tables.queries)
    assert (query["state"], query["reason"]) == ("cancelled", "its flow run was cancelled")
    assert_idle_and_clean(fleet)


def _four(found: dict[str, Any]) -> dict[str, Any] | None:
    return found if len(found) == 4 else None


RUN = """
import asyncio, sys
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow_async
sys.path.insert(0, sys.argv[1])
from asking import asking

async def main():
    async with get_client() as client:
        flow_run = await client.read_flow_run(UUID(sys.argv[2]))
    await run_flow_async(flow=asking, flow_run=flow_run, parameters=flow_run.parameters)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_killed_process_loses_its_leases_and_a_new_one_goes_on(
    fleet: Fleet,
    slots: StandIn,
    entrypoint: str,
    prefect_server: PrefectServer,
    prefect_client: PrefectClient,
    tmp_path: Path,
) -> None:
    """Laws 6 and 8: what had finished is reused under the same flow run, the rest is run again."""
    flow_run = await prefect_client.create_flow_run(
        _asking(tmp_path), parameters={"count": 4}, state=Pending()
    )
    arguments = ("-c", RUN, str(tmp_path), str(flow_run.id))
    first = start(prefect_server, fleet, tmp_path / "1.log", *arguments, HEXPREFECT_LEASE_S="3")
    other_slots = fleet.add("b", slots=1, seconds=0.3)
    try:
        await until_async(lambda: len(slots.running) == 2, limit_s=120)
        await until_async(lambda: _finished(fleet) >= 1, limit_s=60)
        other_slots.hold()
        finished = _finished(fleet)
        first.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.wait, 30)
        # Somebody else's heartbeat finds it dead; here, this test's own process.
        await until_async(lambda: bool(fleet.store.transact(leases.expire)), limit_s=30)
        assert fleet.occupied() == 0
        assert fleet.backlog_s() == 0
        [query] = fleet.rows(tables.queries)
        assert query["state"] == "failed"
        assert "died" in query["reason"]
        lost = [row for row in fleet.rows(tables.requests) if row["state"] != "finished"]
        assert {row["state"] for row in lost} == {"failed"}
        assert len(lost) + finished >= 3
        assert fleet.violations() == []

        asked_before = len(slots.asked) + len(other_slots.asked)
        slots.release()
        other_slots.release()
        await prefect_client.set_flow_run_state(flow_run.id, Pending(), force=True)
        second = start(prefect_server, fleet, tmp_path / "2.log", *arguments)
        assert await asyncio.to_thread(second.wait, 120) == 0, (tmp_path / "2.log").read_text()
    finally:
        await asyncio.to_thread(end, first)
    flow_run = await prefect_client.read_flow_run(flow_run.id)
    assert flow_run.state is not None
    assert flow_run.state.is_completed()
    [query] = fleet.rows(tables.queries)
    assert query["state"] == "answered"
    requests = fleet.rows(tables.requests)
    assert [row["state"] for row in requests] == ["finished"] * 4
    asked = len(slots.asked) + len(other_slots.asked)
    assert asked - asked_before == 4 - finished
    assert_idle_and_clean(fleet)
    # It left the queue when it ended: nobody has to wait until its lease expires.
    assert len(fleet.rows(tables.processes)) == 0


def _finished(fleet: Fleet) -> int:
    return sum(row["state"] == "finished" for row in fleet.rows(tables.requests))


def _asking(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("asking", folder / "asking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.asking
