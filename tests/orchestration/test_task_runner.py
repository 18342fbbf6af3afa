"""Prefect's documented task-runner behaviours, with ordinary and LLM tasks side by side."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from prefect import flow, task, unmapped
from prefect.futures import PrefectFutureList, as_completed, wait

from hexprefect.orchestration.future import HexgenFuture
from hexprefect.orchestration.llm_task import (
    LlmTask,
    OutsideLlmTask,
    current_request,
    llm_task,
)
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, StandIn, prompt_of, until_async
from tests.orchestration.ordinary_and_llm_tasks import (
    ask,
    ask_in_thread,
    double,
    double_in_thread,
    fail,
    fail_on_instance,
    pass_on,
)

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet", "instance")


async def test_an_async_flow_awaits_futures_of_every_kind_of_task() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def mixed() -> list[Any]:
        futures = [
            double.submit(1),
            double_in_thread.submit(2),
            ask.submit("three"),
            ask_in_thread.submit("four"),
        ]
        assert all(isinstance(future, HexgenFuture) for future in futures)
        return [await future for future in futures]

    assert await mixed() == [2, 4, "echo three", "echo four"]


def test_a_sync_flow_blocks_for_results_of_every_kind_of_task() -> None:
    @flow(task_runner=HexgenTaskRunner())
    def mixed() -> list[Any]:
        futures: list[Any] = [double.submit(1), double_in_thread.submit(2), ask.submit("three")]
        in_thread: Any = ask_in_thread.submit("four")
        in_thread.wait()
        assert in_thread.state.is_completed()
        return [future.result() for future in futures] + [in_thread.result()]

    assert mixed() == [2, 4, "echo three", "echo four"]


def test_return_state_gives_the_final_state() -> None:
    @flow(task_runner=HexgenTaskRunner())
    def states() -> list[Any]:
        return [
            double.submit(1, return_state=True).name,
            ask.submit("one", return_state=True).name,
            fail_on_instance.submit("two", return_state=True).name,
        ]

    assert states() == ["Completed", "Completed", "Failed"]


async def test_a_wait_that_ends_too_early_raises_or_returns_as_prefects() -> None:
    release = threading.Event()

    @task
    def slow() -> str:
        release.wait(30)
        return "done"

    @flow(task_runner=HexgenTaskRunner())
    async def impatient() -> Any:
        future: Any = slow.submit()
        try:
            future.wait(0.05)
            assert not future.wrapped_future.done()
            with pytest.raises(TimeoutError):
                future.result(timeout=0.05)
            done, not_done = wait([future], timeout=0.05)
            assert (done, not_done) == (set(), {future})
        finally:
            release.set()
        return await future

    assert await impatient() == "done"


async def test_an_exception_keeps_its_type_and_its_arguments() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def failing() -> None:
        for future in (fail.submit("lost"), fail_on_instance.submit("lost")):
            with pytest.raises(LookupError, match="lost"):
                await future
            state = await future.astate()
            assert (state.name, state.is_failed()) == ("Failed", True)
            error = await future.aresult(raise_on_failure=False)
            assert isinstance(error, LookupError)
        answer: Any = ask.submit("reject this")
        with pytest.raises(Exception, match="cannot read 'reject this'") as refused:
            await answer
        assert type(refused.value).__name__ == "PromptRejected"

    await failing()


async def test_who_stops_waiting_does_not_stop_the_task(instance: StandIn) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def impatient() -> Any:
        instance.hold()
        future: Any = ask.submit("x")
        await until_async(lambda: instance.running == ["x"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future.aresult(), 0.05)
        assert (instance.running, instance.left) == (["x"], [])
        instance.release()
        return await future

    assert await impatient() == "echo x"


# -- map ----------------------------------------------------------------------------------------


async def test_map_over_several_iterables_with_unmapped_and_defaults() -> None:
    @task
    async def join(left: str, right: str, between: str = "-", after: str = ".") -> str:
        return left + between + right + after

    @llm_task(stage="ask")
    async def ask_joined(left: str, right: str, between: str) -> str:
        return (await current_request().complete(prompt_of(left + between + right))).text

    @flow(task_runner=HexgenTaskRunner())
    async def mapped() -> list[Any]:
        joined = join.map(["a", "b"], ["c", "d"], unmapped("+"))
        assert isinstance(joined, PrefectFutureList)
        asked: Any = ask_joined.map(joined, ["x", "y"], between=unmapped("/"))
        return [await future for future in joined] + [await future for future in asked]

    assert await mapped() == ["a+c.", "b+d.", "echo a+c./x", "echo b+d./y"]


def test_lists_of_futures_give_their_results_in_order_and_as_they_come() -> None:
    @flow(task_runner=HexgenTaskRunner())
    def mapped() -> Any:
        futures: Any = ask.map(["a", "b", "c"])
        assert futures.result() == ["echo a", "echo b", "echo c"]
        return sorted(future.result() for future in as_completed(ask.map(["d", "e"])))

    assert mapped() == ["echo d", "echo e"]


async def test_map_refuses_what_prefects_map_refuses() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def mismatched() -> None:
        pass_on.map([1, 2], other=[1])

    with pytest.raises(Exception, match="different lengths"):
        await mismatched()


# -- one runner, many flow runs -----------------------------------------------------------------


async def test_flow_runs_of_one_flow_object_do_not_disturb_each_other(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def asking(text: str) -> Any:
        return [await future for future in ask.map([f"{text}{n}" for n in range(4)])]

    answers = await asyncio.gather(*(asking(text) for text in "abcde"))
    assert answers == [[f"echo {text}{n}" for n in range(4)] for text in "abcde"]
    assert len(fleet.rows(tables.queries)) == 5
    assert fleet.occupied() == 0
    assert fleet.backlog_s() == 0
    assert fleet.violations() == []


async def test_a_task_that_leaves_the_process_takes_nobody_with_it() -> None:
    @task
    async def leaves() -> None:
        sys.exit(3)

    @task
    async def leaves_from_a_child() -> None:
        async def child() -> None:
            sys.exit(4)

        await asyncio.gather(child())

    @flow(task_runner=HexgenTaskRunner())
    async def leaving() -> Any:
        for future in (leaves.submit(), leaves_from_a_child.submit()):
            assert (await _ended(future.wrapped_future)) is not None
        return await ask.submit("still here")

    assert await leaving() == "echo still here"


async def _ended(future: Any) -> Any:
    await asyncio.to_thread(lambda: _quietly(lambda: future.result(30)))
    return True


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(BaseException):
        call()


# -- declaring LLM tasks ------------------------------------------------------------------------


async def test_an_llm_task_outside_the_runner_says_what_to_do() -> None:
    @flow
    async def elsewhere() -> Any:
        return await ask("x")

    with pytest.raises(OutsideLlmTask, match="HexgenTaskRunner"):
        await elsewhere()
    with pytest.raises(RuntimeError, match="not started"):
        HexgenTaskRunner().submit(ask, {"text": "x"})


async def test_an_ordinary_task_has_no_part_in_the_lease_of_its_parent() -> None:
    @task
    async def child() -> None:
        current_request()

    @llm_task(stage="outer")
    async def parent() -> None:
        with pytest.raises(OutsideLlmTask):
            await child.submit()

    @flow(task_runner=HexgenTaskRunner())
    async def nesting() -> None:
        await parent.submit()

    await nesting()


def test_options_of_llm_tasks_survive_with_options() -> None:
    changed = ask.with_options(name="other", stage="judge", retries=2)
    assert isinstance(changed, LlmTask)
    assert (changed.name, changed.stage, changed.retries) == ("other", "judge", 2)
    assert (ask.name, ask.stage, ask.retries) == ("ask", "ask", 0)
    with pytest.raises(TypeError, match="generator"):

        @llm_task(stage="ask")
        async def generates() -> Any:
            yield 1


def test_a_runner_is_compared_copied_and_pickled_by_its_options() -> None:
    runner = HexgenTaskRunner(tenant="t", slo_s=5)
    assert runner == runner.duplicate() == cloudpickle.loads(cloudpickle.dumps(runner))
    assert runner != HexgenTaskRunner(tenant="t", slo_s=6)
    assert runner.name == "hexgen"


def test_a_runner_works_as_a_context_manager_without_a_flow() -> None:
    with HexgenTaskRunner() as runner:
        first = runner.submit(ask, {"text": "one"})
        second = runner.submit(ask, {"text": first})
        assert second.result() == "echo echo one"
