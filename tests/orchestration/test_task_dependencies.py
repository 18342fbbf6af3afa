"""What tasks wait for, and what Prefect shows of it, with ordinary and LLM tasks side by side."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from prefect import allow_failure, flow, tags, task
from prefect.exceptions import UnfinishedRun
from prefect.utilities.annotations import quote

from hexprefect.orchestration.llm_task import (
    llm_task,
)
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import tables
from tests.orchestration.bench import Fleet, SeenByPrefect, StandIn, until_async
from tests.orchestration.ordinary_and_llm_tasks import (
    ask,
    double,
    double_in_thread,
    fail,
    fail_on_instance,
    pass_on,
)

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet", "instance")


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
