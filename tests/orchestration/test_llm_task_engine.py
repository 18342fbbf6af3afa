"""The lease around each attempt: retries, timeouts, caching, hooks, and what the store records."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.cache_policies import INPUTS
from prefect.filesystems import LocalFileSystem
from prefect.states import Failed
from prefect.transactions import atransaction

from hexprefect.errors import HexprefectError
from hexprefect.instances.errors import PromptRejected
from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.queue import QueueOptions
from hexprefect.store import tables
from hexprefect.store.fleet import remove_instance, set_instance_state
from hexprefect.store.values import NoInstanceFits
from tests.orchestration.bench import Fleet, SeenByPrefect, StandIn, prompt_of, until_async
from tests.orchestration.ordinary_and_llm_tasks import ask

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet")


@pytest.fixture
def one_slot(fleet: Fleet) -> StandIn:
    return fleet.add("a", slots=1)


def attempts_of(fleet: Fleet) -> list[tuple[int, str]]:
    rows = sorted(fleet.rows(tables.attempts), key=lambda row: row["id"])
    return [(row["number"], row["outcome"]) for row in rows]


def assert_idle_and_clean(fleet: Fleet) -> None:
    assert fleet.occupied() == 0
    assert fleet.backlog_s() == 0
    assert fleet.violations() == []


# -- retries ------------------------------------------------------------------------------------


def fails_times(count: int, **options: Any) -> Any:
    """An LLM task whose first `count` attempts fail after their answer."""
    left = [count]

    @llm_task(stage="flaky", **options)
    async def flaky(text: str) -> str:
        answer = (await current_request().complete(prompt_of(text))).text
        if left[0] > 0:
            left[0] -= 1
            raise ConnectionAbortedError(f"{left[0]} more")
        return answer

    return flaky


@pytest.mark.parametrize("delay", [None, 0.2])
async def test_each_retry_is_a_new_attempt(
    fleet: Fleet, one_slot: StandIn, seen_by_prefect: SeenByPrefect, delay: float | None
) -> None:
    options = {} if delay is None else {"retry_delay_seconds": delay}
    flaky = fails_times(2, retries=2, **options)
    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner(slo_s=100))
    async def retrying() -> Any:
        future = flaky.submit("x")
        ids.append(future.task_run_id)
        return await future

    assert await retrying() == "echo x"
    assert attempts_of(fleet) == [(1, "failed"), (2, "failed"), (3, "finished")]
    [request] = fleet.rows(tables.requests)
    assert (request["state"], request["attempt"]) == ("finished", 3)
    [query] = fleet.rows(tables.queries)
    # The last attempt got what was left, not the whole again.
    assert 0 < request["budget_s"] <= query["deadline"] - request["ready_at"] < 100
    runs = await asyncio.to_thread(seen_by_prefect.when, {ids[0]: "Completed"})
    assert runs[str(ids[0])]["run_count"] == 3
    names = [name for name, _ in seen_by_prefect.states(ids[0])]
    between = ["AwaitingRetry", "Retrying"] if delay else ["Retrying"]
    assert names == ["Pending", "Running", *between, *between, "Completed"]
    assert_idle_and_clean(fleet)


async def test_a_prompt_at_fault_gets_no_retry(fleet: Fleet, one_slot: StandIn) -> None:
    """It would be refused again, and again, and cost its query the time that is left."""

    @llm_task(stage="ask", retries=3)
    async def persistent(text: str) -> str:
        return (await current_request().complete(prompt_of(text))).text

    @flow(task_runner=HexgenTaskRunner())
    async def rejected() -> str:
        return await persistent.submit("reject this")

    with pytest.raises(PromptRejected):
        await rejected()
    assert attempts_of(fleet) == [(1, "failed")]
    assert_idle_and_clean(fleet)


async def test_the_lease_is_released_before_a_retry_is_waited_for(
    fleet: Fleet, one_slot: StandIn
) -> None:
    flaky = fails_times(1, retries=1, retry_delay_seconds=1.5)

    @flow(task_runner=HexgenTaskRunner())
    async def retrying() -> list[Any]:
        first = flaky.submit("first")
        await until_async(lambda: attempts_of(fleet) == [(1, "failed")])
        assert fleet.occupied() == 0
        second = await ask.submit("second")
        assert not first.wrapped_future.done()
        return [await first, second]

    assert await retrying() == ["echo first", "echo second"]
    assert one_slot.asked == ["first", "second", "first"]
    assert_idle_and_clean(fleet)


async def test_a_retry_waits_its_turn_and_says_so(
    fleet: Fleet, one_slot: StandIn, seen_by_prefect: SeenByPrefect
) -> None:
    flaky = fails_times(1, retries=1)
    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def retrying() -> Any:
        one_slot.hold()
        first = flaky.submit("first")
        await until_async(lambda: one_slot.running == ["first"])
        # Admitted when the first attempt fails, before the retry is submitted.
        second: Any = ask.submit("second")
        await until_async(lambda: fleet.view("a").waiting == 1)
        ids.append(first.task_run_id)
        one_slot.let("first")
        await until_async(lambda: one_slot.running == ["second"])
        await until_async(lambda: fleet.view("a").waiting == 1)
        one_slot.release()
        return [await first, await second]

    assert await retrying() == ["echo first", "echo second"]
    assert one_slot.asked == ["first", "second", "first"]
    runs = await asyncio.to_thread(seen_by_prefect.when, {ids[0]: "Completed"})
    names = [name for name, _ in seen_by_prefect.states(ids[0])]
    assert names[-3:] == ["AwaitingInstance", "Retrying", "Completed"]
    assert runs[str(ids[0])]["run_count"] == 2
    assert_idle_and_clean(fleet)


async def test_a_retry_condition_is_asked(fleet: Fleet, one_slot: StandIn) -> None:
    asked: list[str] = []

    def only_once(task: Any, task_run: Any, state: Any) -> bool:
        asked.append(state.name)
        return len(asked) < 2

    flaky = fails_times(5, retries=5, retry_condition_fn=only_once)

    @flow(task_runner=HexgenTaskRunner())
    async def retrying() -> None:
        with pytest.raises(ConnectionAbortedError, match="3 more"):
            await flaky.submit("x")

    await retrying()
    assert len(one_slot.asked) == 2
    assert attempts_of(fleet) == [(1, "failed"), (2, "failed")]
    assert_idle_and_clean(fleet)


async def test_a_returned_failed_state_is_a_failed_attempt(fleet: Fleet, one_slot: StandIn) -> None:
    left = [1]

    @llm_task(stage="ask", retries=1)
    async def declines(text: str) -> Any:
        answer = (await current_request().complete(prompt_of(text))).text
        if left[0]:
            left[0] -= 1
            return Failed(message="not good enough")
        return answer

    @flow(task_runner=HexgenTaskRunner())
    async def declining() -> Any:
        return await declines.submit("x")

    assert await declining() == "echo x"
    assert attempts_of(fleet) == [(1, "failed"), (2, "finished")]
    assert_idle_and_clean(fleet)


@pytest.mark.parametrize("what", ["an unknown tenant", "no instance"])
async def test_a_request_that_cannot_be_served_fails_once_with_the_reason(
    fleet: Fleet, seen_by_prefect: SeenByPrefect, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    tenant, said = ("nobody", "'nobody' is not known")
    if what == "no instance":
        tenant, said = ("default", "no instance is alive")
        monkeypatch.setattr("hexprefect.queue.shared_queue.SLICE_S", 0.1)
        monkeypatch.setattr(
            "hexprefect.orchestration.background_loop.QueueOptions",
            partial(QueueOptions, outage_patience_s=0.3),
        )
    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner(tenant=tenant))
    async def unserved() -> None:
        future: Any = ask.with_options(retries=3).submit("x")
        ids.append(future.task_run_id)
        await future

    with pytest.raises(HexprefectError, match=said):
        await unserved()
    states = await asyncio.to_thread(seen_by_prefect.states, ids[0])
    assert said in dict(states)["Failed"]
    names = [name for name, _ in states]
    assert names in (["Pending", "Failed"], ["Pending", "AwaitingInstance", "Failed"])
    assert_idle_and_clean(fleet)


# -- timeouts -----------------------------------------------------------------------------------


async def test_waiting_in_the_queue_does_not_count_towards_a_timeout(
    fleet: Fleet, one_slot: StandIn
) -> None:
    timed = ask.with_options(timeout_seconds=3)

    @flow(task_runner=HexgenTaskRunner())
    async def waiting() -> Any:
        one_slot.hold()
        first: Any = ask.submit("first")
        await until_async(lambda: one_slot.running == ["first"])
        second: Any = timed.submit("second")
        await until_async(lambda: fleet.view("a").waiting == 1)
        await asyncio.sleep(3.5)
        one_slot.release()
        return [await first, await second]

    assert await waiting() == ["echo first", "echo second"]
    assert_idle_and_clean(fleet)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_timed_out_attempt_stops_generating_and_frees_its_slot(
    fleet: Fleet, one_slot: StandIn, seen_by_prefect: SeenByPrefect, kind: str
) -> None:
    @llm_task(stage="ask", timeout_seconds=0.5)
    async def slow(text: str) -> str:
        return (await current_request().complete(prompt_of(text))).text

    @llm_task(stage="ask", timeout_seconds=0.5)
    def slow_in_thread(text: str) -> str:
        return current_request().complete_blocking(prompt_of(text)).text

    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def timing_out() -> Any:
        one_slot.hold()
        future: Any = (slow if kind == "async" else slow_in_thread).submit("long")
        ids.append(future.task_run_id)
        with pytest.raises(TimeoutError):
            await future
        await until_async(lambda: one_slot.left == ["long"])
        assert fleet.occupied() == 0
        one_slot.release()
        return await ask.submit("next")

    assert await timing_out() == "echo next"
    await asyncio.to_thread(seen_by_prefect.when, {ids[0]: "TimedOut"})
    assert attempts_of(fleet) == [(1, "failed"), (1, "finished")]
    assert_idle_and_clean(fleet)


# -- caching and persistence --------------------------------------------------------------------


@pytest.fixture
async def storage(tmp_path: Path) -> LocalFileSystem:
    storage = LocalFileSystem(basepath=str(tmp_path / "results"))
    await storage.save(f"results-{time.time_ns()}")  # type: ignore[misc]
    return storage


async def test_a_cached_result_takes_no_lease(
    fleet: Fleet, one_slot: StandIn, storage: LocalFileSystem, seen_by_prefect: SeenByPrefect
) -> None:
    cached = ask.with_options(cache_policy=INPUTS, persist_result=True, result_storage=storage)
    ids: list[Any] = []

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        future: Any = cached.submit("x")
        ids.append(future.task_run_id)
        return await future

    assert [await asking(), await asking()] == ["echo x", "echo x"]
    assert one_slot.asked == ["x"]
    assert len(fleet.rows(tables.requests)) == 1
    await asyncio.to_thread(seen_by_prefect.when, {ids[0]: "Completed", ids[1]: "Cached"})

    refreshed = cached.with_options(refresh_cache=True)

    @flow(task_runner=HexgenTaskRunner())
    async def refreshing() -> Any:
        return await refreshed.submit("x")

    assert await refreshing() == "echo x"
    assert one_slot.asked == ["x", "x"]
    assert_idle_and_clean(fleet)


async def test_a_result_that_another_run_commits_meanwhile_gives_the_lease_back(
    fleet: Fleet, one_slot: StandIn, storage: LocalFileSystem
) -> None:
    cached = ask.with_options(cache_policy=INPUTS, persist_result=True, result_storage=storage)

    @flow(task_runner=HexgenTaskRunner())
    async def twice() -> Any:
        one_slot.hold()
        futures: list[Any] = [cached.submit("x")]
        await until_async(lambda: one_slot.running == ["x"])
        futures.append(cached.submit("x"))
        await until_async(lambda: fleet.view("a").waiting == 1)
        one_slot.release()
        return [await future for future in futures]

    assert await twice() == ["echo x", "echo x"]
    assert len(one_slot.asked) <= 2
    assert_idle_and_clean(fleet)


async def test_results_are_persisted_where_prefect_is_asked_to(
    fleet: Fleet, one_slot: StandIn, storage: LocalFileSystem
) -> None:
    kept = ask.with_options(
        persist_result=True, result_storage=storage, result_storage_key="answer-{parameters[text]}"
    )

    @llm_task(stage="ask", result_storage_key="other", result_storage=storage)
    async def declared(text: str) -> str:
        return text

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        return [await kept.submit("x"), await declared.submit("y")]  # type: ignore[misc]

    assert await asking() == ["echo x", "y"]
    kept_files = await asyncio.to_thread(os.listdir, storage.basepath)
    assert {"answer-x", "other"} <= set(kept_files)
    assert_idle_and_clean(fleet)


# -- hooks and transactions ---------------------------------------------------------------------


async def test_hooks_are_called_once_for_each_state(fleet: Fleet, one_slot: StandIn) -> None:
    seen: list[tuple[str, str]] = []

    def hook(kind: str) -> Any:
        def call(task: Any, task_run: Any, state: Any) -> None:
            seen.append((kind, state.name))

        call.__name__ = kind
        return call

    hooks = {
        "on_running": [hook("running")],
        "on_completion": [hook("completion")],
        "on_failure": [hook("failure")],
    }
    flaky = fails_times(1, retries=1, **hooks)
    hopeless = fails_times(9, **hooks)

    @flow(task_runner=HexgenTaskRunner())
    async def hooked() -> None:
        await flaky.submit("x")
        seen.append(("--", ""))
        with pytest.raises(ConnectionAbortedError):
            await hopeless.submit("y")

    await hooked()
    assert seen == [
        ("running", "Running"),
        ("running", "Retrying"),
        ("completion", "Completed"),
        ("--", ""),
        ("running", "Running"),
        ("failure", "Failed"),
    ]


async def test_a_transaction_that_fails_rolls_its_llm_tasks_back(
    fleet: Fleet, one_slot: StandIn
) -> None:
    undone: list[str] = []

    @llm_task(stage="ask")
    async def write(text: str) -> str:
        return (await current_request().complete(prompt_of(text))).text

    @write.on_rollback
    def undo(transaction: Any) -> None:
        undone.append("write")

    @task
    async def both() -> None:
        async with atransaction():
            await write.submit("x")
            raise ValueError("no")

    @flow(task_runner=HexgenTaskRunner())
    async def rolling_back() -> None:
        with pytest.raises(ValueError, match="no"):
            await both.submit()

    await rolling_back()
    assert undone == ["write"]
    assert_idle_and_clean(fleet)


# -- leases that are lost -----------------------------------------------------------------------


async def test_a_body_whose_lease_was_given_away_is_run_again(
    fleet: Fleet, one_slot: StandIn
) -> None:
    runs: list[int] = []

    @llm_task(stage="ask")
    async def robbed(text: str) -> int:
        request = current_request()
        runs.append(request.attempt)
        if len(runs) == 1:
            # What the store's upkeep does when it takes a process for dead.
            await request.cancel("taken away")
        await request.complete(prompt_of(text))
        return request.attempt

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        return await robbed.submit("x")

    assert await asking() == 2
    assert runs == [1, 2]
    assert attempts_of(fleet) == [(1, "cancelled"), (2, "finished")]
    assert_idle_and_clean(fleet)


async def test_thousands_of_waiting_tasks_need_no_thread_each(
    fleet: Fleet, one_slot: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    @flow(task_runner=HexgenTaskRunner(), log_prints=False)
    async def many() -> int:
        one_slot.hold()
        futures: list[Any] = list(ask.map(range(300)))
        await until_async(lambda: fleet.view("a").waiting == 299)
        threads = threading.active_count()
        one_slot.release()
        await asyncio.gather(*(future.astate() for future in futures))
        return threads

    assert await many() < 60
    assert len(one_slot.asked) == 300
    assert one_slot.most_running == 1
    assert_idle_and_clean(fleet)


# -- what no instance could ever hold -----------------------------------------------------------


async def test_a_prompt_that_no_instance_could_ever_hold_fails_at_once(fleet: Fleet) -> None:
    """Nothing would come of waiting: were it waited for, this test would take five minutes."""
    fleet.add("short", context_tokens=512)

    @flow(task_runner=HexgenTaskRunner())
    async def too_long() -> str:
        return await summarise.submit("word " * 20_000)

    @llm_task(stage="summary", retries=3)
    async def summarise(text: str) -> str:
        return (await current_request().complete(prompt_of(text))).text

    with pytest.raises(NoInstanceFits, match=r"more than any instance holds: short 512"):
        await too_long()
    assert fleet.rows(tables.requests) == []
    [query] = fleet.rows(tables.queries)
    assert query["state"] == "failed"
    assert "more than any instance holds" in query["reason"]
    assert_idle_and_clean(fleet)


async def test_what_waits_while_every_instance_is_too_small_is_told_so(fleet: Fleet) -> None:
    """It was submitted when none lived; those that came are too small."""
    fleet.add("large")
    fleet.store.transact(lambda tx: set_instance_state(tx, "large", "dead"))

    @flow(task_runner=HexgenTaskRunner())
    async def too_long() -> str:
        future = ask.submit("word " * 20_000)
        await until_async(lambda: fleet.rows(tables.requests))
        fleet.add("short", context_tokens=512)
        fleet.store.transact(lambda tx: remove_instance(tx, "large"))
        return await future

    with pytest.raises(NoInstanceFits):
        await too_long()
    assert_idle_and_clean(fleet)
