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
from prefect import allow_failure, flow, tags, task, unmapped
from prefect.exceptions import UnfinishedRun
from prefect.futures import PrefectFutureList, as_completed, wait
from prefect.utilities.annotations import quote

from hexprefect.orchestration.future import HexgenFuture, WouldDeadlock
from hexprefect.orchestration.llm_task import (
    LlmTask,
    OutsideLlmTask,
    current_request,
    llm_task,
)
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, SeenByPrefect, StandIn, prompt_of, until_async

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet")


@task
async def double(number: int) -> int:
    return 2 * number


@task
def double_in_thread(number: int) -> int:
    return 2 * number


@llm_task(stage="ask")
async def ask(text: object) -> str:
    return (await current_request().complete(prompt_of(str(text)))).text


@llm_task(stage="ask")
def ask_in_thread(text: object) -> str:
    return current_request().complete_blocking(prompt_of(str(text))).text


@task
async def fail(text: str) -> str:
    raise LookupError(text)


@llm_task(stage="ask")
async def fail_on_instance(text: str) -> str:
    await current_request().complete(prompt_of(text))
    raise LookupError(text)


@task
async def pass_on(value: Any, *, other: Any = None) -> Any:
    return value


@pytest.fixture(autouse=True)
def instance(fleet: Fleet) -> Any:
    return fleet.add("a")


# -- submit, result, await ----------------------------------------------------------------------


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


# -- dependencies -------------------------------------------------------------------------------


async def test_futures_are_found_wherever_they_are_in_the_parameters() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def nested() -> Any:
        asked = ask.submit("one")
        number = double.submit(4)
        deep = pass_on.submit({"list": [asked, (number, {"x": asked})]}, other=number)
        return await pass_on.submit([deep, await ask.submit([number])])

    assert await nested() == [{"list": ["echo one", (8, {"x": "echo one"})]}, "echo [8]"]


async def test_parameters_are_passed_by_reference() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def by_reference() -> bool:
        value = object()
        return await pass_on.submit(quote(value)) is value

    assert await by_reference()


async def test_wait_for_orders_tasks_that_exchange_no_data() -> None:
    order: list[str] = []

    @task
    async def slowly(name: str) -> None:
        await asyncio.sleep(0.2)
        order.append(name)

    @llm_task(stage="ask")
    async def then(name: str) -> None:
        order.append(name)

    @flow(task_runner=HexgenTaskRunner())
    async def ordered() -> None:
        first = slowly.submit("first")
        second = then.submit("second", wait_for=[first])
        await slowly.submit("third", wait_for=[second, "a value"])  # type: ignore[list-item]

    await ordered()
    assert order == ["first", "second", "third"]


async def test_what_is_quoted_is_neither_resolved_nor_waited_for() -> None:
    release = threading.Event()

    @task
    def slow() -> None:
        release.wait(30)

    @flow(task_runner=HexgenTaskRunner())
    async def quoting() -> Any:
        future = slow.submit()
        try:
            return await pass_on.submit(quote([future])) == [future]
        finally:
            release.set()

    assert await quoting()


async def test_a_failed_upstream_task_leaves_its_dependents_not_ready() -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def failing() -> list[str]:
        failed = fail.submit("lost")
        dependents: list[Any] = [
            ask.submit(failed),
            double.submit(failed),  # type: ignore[arg-type]
            double_in_thread.submit(failed),  # type: ignore[arg-type]
            ask.submit("x", wait_for=[failed]),
        ]
        for dependent in dependents:
            with pytest.raises(UnfinishedRun):
                await dependent
        second = ask.submit(dependents[0])
        return [(await future.astate()).name for future in [*dependents, second]]

    assert await failing() == ["NotReady"] * 5


async def test_allow_failure_hands_the_error_on(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def tolerant() -> Any:
        failed = fail_on_instance.submit("lost")
        error = await pass_on.submit(allow_failure(failed))
        assert isinstance(error, LookupError)
        return await ask.submit("x", wait_for=[allow_failure(failed)])

    assert await tolerant() == "echo x"
    assert fleet.violations() == []


async def test_the_store_knows_which_requests_a_request_needed(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def chain() -> str:
        first = ask.submit("one")
        return await ask.submit([first, first])

    assert await chain() == "echo ['echo one', 'echo one']"
    first, second = sorted(fleet.rows(tables.requests), key=lambda row: row["submitted_at"])
    assert second["needs"] == [first["id"]]
    assert fleet.violations() == []


# -- what Prefect shows -------------------------------------------------------------------------


async def test_names_tags_and_dependencies_are_seen_on_the_server(
    seen_by_prefect: SeenByPrefect,
) -> None:
    ids: list[str] = []

    @flow(task_runner=HexgenTaskRunner())
    async def shown() -> None:
        number = double.submit(2)
        with tags("urgent"):
            named = ask.with_options(
                name="question", task_run_name="ask-{text}", tags=["llm"]
            ).submit(number)
        after = ask.submit("later", wait_for=[named])
        await after
        ids.extend(str(future.task_run_id) for future in (number, named, after))

    await shown()
    first, second, third = ids
    runs = await asyncio.to_thread(seen_by_prefect.when, dict.fromkeys(ids, "Completed"))
    assert runs[second]["name"] == "ask-4"
    assert set(runs[second]["tags"]) == {"llm", "urgent"}
    assert runs[second]["task_inputs"]["text"] == [{"input_type": "task_run", "id": first}]
    assert runs[third]["task_inputs"]["wait_for"] == [{"input_type": "task_run", "id": second}]
    assert runs[third]["name"].startswith("ask-")
    assert [runs[run]["run_count"] for run in ids] == [1, 1, 1]
    assert not any("__parents__" in runs[run]["task_inputs"] for run in ids)


async def test_a_future_tells_its_state_without_asking_the_server(
    fleet: Fleet, instance: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.hold()

    @task
    async def parent() -> Any:
        return await double.submit(1)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the server was asked")

    @flow(task_runner=HexgenTaskRunner())
    async def looking() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("prefect.futures.get_client", refuse)
            asked: Any = ask.submit("x")
            await until_async(lambda: asked.state.name == "Running")
            dependent = ask.submit(asked)
            assert dependent.state.name == "AwaitingUpstream"
            assert not dependent.task_run.task_inputs.get("__parents__")
            instance.release()
            await dependent
            assert (asked.state.name, dependent.state.name) == ("Completed", "Completed")
            nested: Any = parent.submit()
            await nested

    await looking()


async def test_states_tell_what_a_task_waits_for(
    fleet: Fleet, seen_by_prefect: SeenByPrefect
) -> None:
    for name in ("a", "b"):
        fleet.add(name, slots=1).hold()
    ids: list[str] = []

    @flow(task_runner=HexgenTaskRunner())
    async def waiting() -> None:
        futures: list[Any] = list(ask.map(range(2)))
        await until_async(lambda: sum(len(i.running) for i in fleet.instances.values()) == 2)
        futures.append(ask.submit(2))
        futures.append(ask.submit([futures[0]]))
        ids.extend(str(future.task_run_id) for future in futures)
        await asyncio.to_thread(
            seen_by_prefect.when, {ids[2]: "AwaitingInstance", ids[3]: "AwaitingUpstream"}
        )
        for instance in fleet.instances.values():
            instance.release()
        for future in futures:
            await future

    await waiting()
    await asyncio.to_thread(seen_by_prefect.when, dict.fromkeys(ids, "Completed"))
    names = [[name for name, _ in seen_by_prefect.states(run)] for run in ids]
    assert names[0] == ["Pending", "Running", "Completed"]
    assert names[2] == ["Pending", "AwaitingInstance", "Running", "Completed"]
    # Whether it finds an instance free when its upstream task has ended is a matter of moments.
    assert [name for name in names[3] if name != "AwaitingInstance"] == [
        "AwaitingUpstream", "Running", "Completed"
    ]  # fmt: skip
    message = dict(seen_by_prefect.states(ids[2]))["AwaitingInstance"]
    assert message in ("Waiting for a.", "Waiting for b.")
    assert fleet.violations() == []


# -- nesting ------------------------------------------------------------------------------------


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
