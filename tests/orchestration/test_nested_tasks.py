"""Tasks and flows that submit tasks, and wait for them or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prefect import flow, task
from prefect.futures import PrefectFutureList, as_completed, wait

from hexprefect.orchestration.future import WouldDeadlock
from hexprefect.orchestration.llm_task import (
    current_request,
    llm_task,
)
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, StandIn, prompt_of, until_async
from tests.orchestration.ordinary_and_llm_tasks import (
    ask,
    double,
    double_in_thread,
)

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet", "instance")


async def test_tasks_submit_tasks_and_wait_for_them() -> None:
    @task
    async def parent(number: int) -> Any:
        return await ask.submit(await double.submit(number))

    @task
    def parent_in_thread(number: int) -> Any:
        return ask.submit(double.submit(number)).result()

    @llm_task(stage="outer")
    async def llm_parent(number: int) -> Any:
        return await double.submit(number)

    @flow(task_runner=HexgenTaskRunner())
    async def nesting() -> list[Any]:
        return [
            await f for f in (parent.submit(1), parent_in_thread.submit(2), llm_parent.submit(3))
        ]

    assert await nesting() == ["echo 2", "echo 4", 6]


async def test_many_synchronous_llm_bodies_wait_for_their_children_at_once(fleet: Fleet) -> None:
    """More of them than an event loop has default threads: none may starve the others."""
    fleet.add("wide", slots=100)

    @llm_task(stage="outer")
    def outer(number: int) -> Any:
        return double_in_thread.submit(number).result()

    @flow(task_runner=HexgenTaskRunner())
    async def nesting() -> int:
        return sum([await future for future in outer.map(range(50))])

    assert await nesting() == sum(2 * number for number in range(50))


async def test_blocking_on_the_shared_loop_raises_instead_of_hanging() -> None:
    @task
    async def blocks(how: str) -> Any:
        future: Any = ask.submit("one")
        futures = PrefectFutureList([future])
        waits: dict[str, Callable[[], Any]] = {
            "result": future.result,
            "wait": future.wait,
            "list result": futures.result,
            "list wait": futures.wait,
            "as completed": lambda: list(as_completed(futures)),
            "wait with a timeout": lambda: wait(futures, timeout=5),
        }
        with pytest.raises(WouldDeadlock, match="await future"):
            waits[how]()
        # Once it is known, nothing blocks.
        assert await future == future.result() == futures.result()[0]
        return how

    hows = ["result", "wait", "list result", "list wait", "as completed", "wait with a timeout"]

    @flow(task_runner=HexgenTaskRunner())
    async def blocking() -> Any:
        return [await future for future in blocks.map(hows)]

    assert await blocking() == hows


async def test_subflows_are_flow_runs_and_queries_of_their_own(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def inner(text: str) -> Any:
        return await ask.submit(text)

    @flow(task_runner=HexgenTaskRunner())
    def inner_in_sync(text: str) -> Any:
        return ask.submit(text).result()

    @task
    async def runs_flow(text: str) -> Any:
        return await inner(text)

    @flow(task_runner=HexgenTaskRunner())
    async def outer() -> list[Any]:
        first: Any = ask.submit("one")
        return [
            await first,
            await inner("two"),
            await asyncio.to_thread(inner_in_sync, "three"),
            await runs_flow.submit("four"),
        ]

    assert await outer() == ["echo one", "echo two", "echo three", "echo four"]
    queries = fleet.rows(tables.queries)
    assert [query["state"] for query in queries] == ["answered"] * 4
    assert fleet.violations() == []


async def test_a_flow_waits_for_what_it_submitted_and_did_not_await(fleet: Fleet) -> None:
    ended: list[str] = []

    @task
    async def late() -> None:
        await asyncio.sleep(0.3)
        ended.append("task")
        ask_and_note.submit("again")

    @llm_task(stage="ask")
    async def ask_and_note(text: str) -> None:
        await current_request().complete(prompt_of(text))
        ended.append(text)

    @flow(task_runner=HexgenTaskRunner())
    async def forgetful() -> str:
        late.submit()
        ask_and_note.submit("once")
        return "done"

    assert await forgetful() == "done"
    assert sorted(ended) == ["again", "once", "task"]
    assert [query["state"] for query in fleet.rows(tables.queries)] == ["answered"]


async def test_a_flow_inside_an_async_task_cancels_what_it_did_not_await(
    fleet: Fleet, instance: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    futures: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def forgetful() -> str:
        futures.append(ask.submit("x"))
        await until_async(lambda: instance.running == ["x"])
        return "done"

    @task
    async def runs_flow() -> str:
        return await forgetful()

    @flow(task_runner=HexgenTaskRunner())
    async def outer() -> Any:
        instance.hold()
        done: Any = await runs_flow.submit()
        assert (await futures[0].astate()).name == "Cancelled"
        return done

    assert await outer() == "done"
    assert "await their futures" in caplog.text
    await until_async(lambda: fleet.occupied() == 0)
    assert fleet.violations() == []
