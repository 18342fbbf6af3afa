"""A flow run is one query: its deadline, its end with a reason, and what a second start reuses."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import PrefectClient
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow_async
from prefect.states import Pending, Suspended
from sqlalchemy import update

from hexprefect.completion import Completion
from hexprefect.orchestration.flow_query import (
    NotInHexgenFlow,
    describe_query,
    end_query,
)
from hexprefect.orchestration.llm_task import current_request, llm_task
from hexprefect.orchestration.task_runner import HexgenTaskRunner
from hexprefect.store import leases, tables
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import QueryEnded
from tests.orchestration.bench import Fleet, StandIn, prompt_of, until_async
from tests.orchestration.ordinary_and_llm_tasks import ask

pytestmark = pytest.mark.usefixtures("seen_by_prefect", "fleet")


@llm_task(stage="ask")
async def ask_whole(text: str) -> Completion:
    return await current_request().complete(prompt_of(text))


@pytest.fixture(autouse=True)
def instance(fleet: Fleet) -> StandIn:
    return fleet.add("a")


def the_query(fleet: Fleet) -> dict[str, Any]:
    [query] = fleet.rows(tables.queries)
    return query


# -- its end (law 10) ---------------------------------------------------------------------------


async def test_a_completed_flow_run_is_an_answered_query(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner(database="shop", slo_s=60))
    async def asking() -> Any:
        await ask.submit("x")
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        return str(context.flow_run.id)

    flow_run_id = await asking()
    query = the_query(fleet)
    assert (query["id"], query["state"], query["database"]) == (flow_run_id, "answered", "shop")
    assert query["deadline"] - query["arrived_at"] == pytest.approx(60)
    assert fleet.violations() == []


async def test_a_failed_flow_run_is_a_failed_query_with_the_reason(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def failing() -> None:
        await ask.submit("x")
        raise ValueError("no such table: orders")

    with pytest.raises(ValueError, match="orders"):
        await failing()
    query = the_query(fleet)
    assert query["state"] == "failed"
    assert "no such table: orders" in query["reason"]
    assert fleet.violations() == []


async def test_a_crashed_flow_run_is_a_failed_query_with_the_reason(fleet: Fleet) -> None:
    class Broken(BaseException):
        pass

    @flow(task_runner=HexgenTaskRunner())
    async def crashing() -> None:
        await ask.submit("x")
        raise Broken("out of luck")

    with pytest.raises(Broken):
        await crashing()
    query = the_query(fleet)
    assert (query["state"], query["reason"]) == ("failed", "its flow run ended: out of luck")


async def test_the_flow_may_end_its_query_itself(fleet: Fleet) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        query = await describe_query(database="shop", slo_s=7.0, question="How many?")
        assert query.time_left_s() < 7
        await ask.submit("x")
        await end_query("failed", reason="nothing found", sql="SELECT 1", answer={"rows": 0})

    await asking()
    query = the_query(fleet)
    assert (query["state"], query["reason"], query["sql"]) == (
        *("failed", "nothing found", "SELECT 1"),
    )
    assert (query["question"], query["slo_s"], query["answer"]) == ("How many?", 7.0, {"rows": 0})


async def test_a_flow_run_that_asks_nothing_is_no_query(fleet: Fleet) -> None:
    @task
    async def plain() -> int:
        return 1

    @flow(task_runner=HexgenTaskRunner())
    async def asking_nothing() -> Any:
        return await plain.submit()

    assert await asking_nothing() == 1
    assert fleet.rows(tables.queries) == []
    with pytest.raises(NotInHexgenFlow, match="task_runner=HexgenTaskRunner"):
        await describe_query()


async def test_a_suspended_flow_run_leaves_its_query_open(
    fleet: Fleet, instance: StandIn, prefect_client: PrefectClient
) -> None:
    suspend = [False, True]

    @flow(task_runner=HexgenTaskRunner())
    async def pausing() -> Any:
        answer: Any = await ask.submit("x")
        if suspend.pop():
            raise Pause(state=Suspended())
        return answer

    flow_run = await prefect_client.create_flow_run(pausing, state=Pending())
    with pytest.raises(Pause):
        await run_flow_async(pausing, flow_run=flow_run)
    assert (the_query(fleet)["state"], fleet.occupied()) == ("running", 0)
    await prefect_client.set_flow_run_state(flow_run.id, Pending(), force=True)
    flow_run = await prefect_client.read_flow_run(flow_run.id)
    assert await run_flow_async(pausing, flow_run=flow_run) == "echo x"
    assert the_query(fleet)["state"] == "answered"
    assert instance.asked == ["x"]


# -- started again (law 6) ----------------------------------------------------------------------


async def test_a_retried_flow_reuses_what_had_finished(fleet: Fleet, instance: StandIn) -> None:
    failures = [1]
    states: list[str] = []

    @flow(task_runner=HexgenTaskRunner(), retries=1, retry_delay_seconds=0)
    async def retrying() -> Any:
        whole: Any = await ask_whole.submit("whole")
        twice = [await future for future in (ask.submit("same"), ask.submit("same"))]
        last: Any = ask.submit([whole.text, *twice])
        if failures[0]:
            failures[0] -= 1
            raise ValueError("once")
        states.append(the_query(fleet)["state"])
        return whole, twice, await last

    whole, twice, last = await retrying()
    assert isinstance(whole, Completion)
    assert (whole.text, whole.instance, whole.output_tokens) == ("echo whole", "a", 4)
    assert twice == ["echo same", "echo same"]
    assert last == "echo ['echo whole', 'echo same', 'echo same']"
    assert instance.asked.count("whole") == 1
    assert instance.asked.count("same") == 2
    assert states == ["running"]
    assert the_query(fleet)["state"] == "answered"
    assert len(fleet.rows(tables.requests)) == 4
    assert fleet.violations() == []


async def test_changed_parameters_are_not_answered_from_an_earlier_start(
    fleet: Fleet, instance: StandIn
) -> None:
    starts = [0]

    @flow(task_runner=HexgenTaskRunner(), retries=1, retry_delay_seconds=0)
    async def retrying() -> Any:
        starts[0] += 1
        answer = await ask.submit(["a long text " * 100, starts[0]])
        if starts[0] == 1:
            raise ValueError("once")
        return answer

    assert (await retrying()).endswith(" 2]")
    assert len(instance.asked) == 2


async def test_results_that_cannot_be_kept_as_they_are_are_made_again(
    fleet: Fleet, instance: StandIn
) -> None:
    failures = [1]

    @llm_task(stage="ask")
    async def ask_for_set(text: str) -> set[str]:
        return {(await current_request().complete(prompt_of(text))).text}

    @flow(task_runner=HexgenTaskRunner(), retries=1, retry_delay_seconds=0)
    async def retrying() -> Any:
        answer: Any = await ask_for_set.submit("x")
        if failures[0]:
            failures[0] -= 1
            raise ValueError("once")
        return answer

    assert await retrying() == {"echo x"}
    assert instance.asked == ["x", "x"]
    assert fleet.violations() == []


async def test_the_time_in_prefects_queue_counts_and_a_restart_gives_no_more(
    fleet: Fleet, prefect_client: PrefectClient
) -> None:
    @flow(task_runner=HexgenTaskRunner(slo_s=100))
    async def asking() -> Any:
        return await ask.submit("x")

    flow_run = await prefect_client.create_flow_run(asking, state=Pending())
    now = datetime.datetime.now(datetime.UTC)
    flow_run.expected_start_time = now - datetime.timedelta(seconds=40)
    state: Any = await run_flow_async(asking, flow_run=flow_run, return_type="state")
    assert state.is_completed()
    query = the_query(fleet)
    assert query["arrived_at"] <= now.timestamp()
    before = query["deadline"]
    await prefect_client.set_flow_run_state(flow_run.id, Pending(), force=True)
    flow_run = await prefect_client.read_flow_run(flow_run.id)
    await run_flow_async(asking, flow_run=flow_run)
    assert the_query(fleet)["deadline"] == before


async def test_a_store_that_was_away_is_asked_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hexprefect.queue import SharedQueue

    real, failures = SharedQueue.query, [1]

    async def away_once(self: SharedQueue, **options: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise ConnectionError("the database is away")
        return await real(self, **options)

    monkeypatch.setattr(SharedQueue, "query", away_once)

    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        with pytest.raises(ConnectionError):
            await ask.submit("x")
        return await ask.submit("x")

    assert await asking() == "echo x"
    assert the_query(fleet)["state"] == "answered"


async def test_a_process_that_was_taken_for_dead_goes_on_where_it_was(
    fleet: Fleet, instance: StandIn
) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> Any:
        finished: Any = await ask.submit("finished")
        instance.hold()
        futures: list[Any] = [ask.submit(["running", number]) for number in range(6)]
        await until_async(lambda: len(instance.running) == 4)
        fleet.store.transact(_take_all_for_dead)
        assert the_query(fleet)["state"] == "failed"
        instance.release()
        return [finished, *[await future for future in futures]]

    assert await asking() == ["echo finished", *[f"echo ['running', {n}]" for n in range(6)]]
    assert the_query(fleet)["state"] == "answered"
    assert {row["state"] for row in fleet.rows(tables.requests)} == {"finished"}
    assert (fleet.occupied(), fleet.backlog_s()) == (0, 0)
    assert fleet.violations() == []


def _take_all_for_dead(tx: Transaction) -> None:
    tx.connection.execute(update(tables.processes).values(expires_at=0.0))
    assert leases.expire(tx)


async def test_a_flow_that_has_ended_its_query_asks_nothing_more(
    fleet: Fleet, instance: StandIn
) -> None:
    @flow(task_runner=HexgenTaskRunner())
    async def asking() -> None:
        await ask.submit("x")
        await end_query("answered", sql="SELECT 1")
        await ask.submit("y")

    with pytest.raises(QueryEnded):
        await asking()
    assert (the_query(fleet)["state"], the_query(fleet)["sql"]) == ("answered", "SELECT 1")
    assert instance.asked == ["x"]


# -- fingerprints -------------------------------------------------------------------------------


class _Unhashable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be copied")


def test_equal_calls_have_equal_fingerprints_and_others_do_not() -> None:
    same = [{"text": {"b": [1, 2], "a": "x"}}, {"text": {"a": "x", "b": [1, 2]}}]
    assert ask.fingerprint(same[0]) == ask.fingerprint(same[1])
    different = [{"text": "x"}, {"text": "y"}, {"text": b"x"}, {"text": prompt_of("x")}]
    different.append({"text": prompt_of("y")})
    assert len({ask.fingerprint(parameters) for parameters in different}) == len(different)
    assert ask.fingerprint({"text": prompt_of("x")}) == ask.fingerprint({"text": prompt_of("x")})
    assert ask.fingerprint({"text": "x"}) != ask_whole.fingerprint({"text": "x"})


def test_what_cannot_be_hashed_is_like_no_other() -> None:
    value = {"text": _Unhashable(), "id": uuid.uuid4()}
    assert ask.fingerprint(value) != ask.fingerprint(value)
