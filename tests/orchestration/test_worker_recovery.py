"""Who has lost its worker: signatures, the census of living workers, and the verdict on a run."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import FlowRun, State, StateType, Worker
from prefect.states import AwaitingRetry, Completed, Failed, Running, Suspended

from hexprefect.orchestration.worker_engine import RunControl
from hexprefect.orchestration.worker_recovery import RELEASED, Census, Owner, judge

NOW = datetime.datetime(2025, 1, 1, 12, tzinfo=datetime.UTC)
ME = Owner(host="here", pid=1, life="b" * 12, worker="me")
words = st.text(st.characters(exclude_characters=":", exclude_categories=("Cs",)), min_size=1)


def ago(seconds: float) -> datetime.datetime:
    return NOW - datetime.timedelta(seconds=seconds)


def worker(name: str, heard_s_ago: float, interval: int = 5) -> Worker:
    return Worker(
        name=name,
        work_pool_id=uuid4(),
        last_heartbeat_time=ago(heard_s_ago),
        heartbeat_interval_seconds=interval,
    )


def census(**heard_s_ago: float) -> Census:
    workers = [worker(name, seconds) for name, seconds in {"me": 0, **heard_s_ago}.items()]
    return Census.of(workers, dead_after_heartbeats=3)


def run(kind: StateType, *, owner: str | None, age: float = 100) -> FlowRun:
    return FlowRun(
        flow_id=uuid4(),
        infrastructure_pid=owner,
        state=State(type=kind, timestamp=ago(age)),
    )


def signed(name: str, life: str = "a" * 12) -> str:
    return Owner(host="there", pid=7, life=life, worker=name).text


def verdict(flow_run: FlowRun, of: Census, **options: Any) -> str:
    defaults: dict[str, Any] = {"me": ME, "mine": (), "first_search": False, "unowned_seconds": 60}
    return judge(flow_run, of, **{**defaults, **options})


@given(host=words, pid=st.integers(0), life=words, name=st.text(min_size=1))
def test_a_signature_is_read_as_it_was_written(host: str, pid: int, life: str, name: str) -> None:
    owner = Owner(host=host, pid=pid, life=life, worker=name)
    assert Owner.parse(owner.text) == owner


@pytest.mark.parametrize("text", [None, "", "4711", RELEASED, "hexgen:a:b:c:d", "k8s:a:1:c:d"])
def test_what_others_write_is_no_signature(text: str | None) -> None:
    assert Owner.parse(text) is None


def test_the_newest_heartbeat_is_the_servers_clock() -> None:
    found = census(other=14, gone=16)
    assert found.now == NOW
    assert found.is_alive("other")
    assert not found.is_alive("gone")
    assert not found.is_alive("never heard of")


def test_one_living_worker_searches_for_all() -> None:
    assert census(also=2).first_alive() == "also"
    assert census(also=200).first_alive() == "me"


@pytest.mark.parametrize("kind", [StateType.PENDING, StateType.RUNNING])
def test_a_run_of_a_dead_worker_is_rescheduled(kind: StateType) -> None:
    assert verdict(run(kind, owner=signed("gone")), census(gone=60)) == "reschedule"
    assert verdict(run(kind, owner=signed("forgotten")), census()) == "reschedule"


def test_a_run_that_was_to_be_cancelled_is_cancelled() -> None:
    assert verdict(run(StateType.CANCELLING, owner=signed("gone")), census(gone=60)) == "cancel"


@pytest.mark.parametrize("kind", [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING])
def test_a_run_of_a_living_worker_is_left_alone(kind: StateType) -> None:
    assert verdict(run(kind, owner=signed("busy"), age=1e6), census(busy=10)) == "leave"


def test_a_run_in_hand_is_left_alone_whoever_signed_it() -> None:
    mine = run(StateType.RUNNING, owner=signed("gone"))
    assert verdict(mine, census(gone=60), mine=(mine.id,)) == "leave"


def test_an_earlier_life_of_this_worker_is_known_to_be_dead_at_the_first_search() -> None:
    orphan = run(StateType.RUNNING, owner=signed("me"), age=1)
    assert verdict(orphan, census(), first_search=True) == "reschedule"
    assert verdict(orphan, census()) == "leave"


@pytest.mark.parametrize("first_search", [True, False])
def test_a_run_that_has_left_this_worker_unfinished_is_rescheduled(first_search: bool) -> None:
    """The server was away when its end was to be told; nobody else would ever look for it."""
    lost = run(StateType.RUNNING, owner=ME.text, age=60)
    assert verdict(lost, census(), first_search=first_search) == "reschedule"
    assert verdict(lost, census(), mine=(lost.id,)) == "leave"
    about_to_be_told = run(StateType.PENDING, owner=ME.text, age=1)
    assert verdict(about_to_be_told, census()) == "leave"


@pytest.mark.parametrize("owner", [None, RELEASED])
def test_an_unsigned_run_has_some_time_to_be_signed(owner: str | None) -> None:
    assert verdict(run(StateType.PENDING, owner=owner, age=59), census()) == "leave"
    assert verdict(run(StateType.PENDING, owner=owner, age=61), census()) == "reschedule"


def test_a_run_is_in_doubt_until_the_server_knows_its_end() -> None:
    control = RunControl(run(StateType.RUNNING, owner=ME.text))
    assert not control.has_been_told, "it has not begun"
    loop = asyncio.new_event_loop()
    control.done = loop.create_future()
    assert not control.has_been_told
    control.done.set_result(Running())
    assert not control.has_been_told
    for final in (Completed(), Failed(), Suspended(), AwaitingRetry()):
        control.done = loop.create_future()
        control.done.set_result(final)
        assert control.has_been_told
    control.done = loop.create_future()
    control.done.set_exception(ConnectionError("the server is away"))
    assert not control.has_been_told
    control.ending = "cancel"
    assert control.has_been_told, "the worker tells it, and tries again"
    control.done.exception()
    loop.close()


@pytest.mark.parametrize("owner", [None, RELEASED])
def test_an_unsigned_run_that_is_to_be_cancelled_has_nobody_to_wait_for(owner: str | None) -> None:
    assert verdict(run(StateType.CANCELLING, owner=owner, age=0), census()) == "cancel"


def test_a_run_that_was_just_taken_again_may_carry_the_old_signature_for_a_moment() -> None:
    fresh = run(StateType.PENDING, owner=signed("gone"), age=2)
    assert verdict(fresh, census(gone=60)) == "leave"


@given(
    kind=st.sampled_from([StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]),
    age=st.floats(0, 1e6),
    heard=st.floats(0, 1e6),
)
def test_only_a_worker_that_missed_its_heartbeats_loses_a_run(
    kind: StateType, age: float, heard: float
) -> None:
    found = verdict(run(kind, owner=signed("other"), age=age), census(other=heard))
    assert found == "leave" or heard > 14.9
