"""The observer: what has changed is told by one process, and not lost when that one dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from hexprefect.orchestration import events
from hexprefect.orchestration.observer import FleetObserver, Happening, look, observe_store
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Store, leases, tables
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.alpha import set_alpha
from hexprefect.store.fleet import enter_instance, set_instance_state
from hexprefect.store.statistics import Alpha, InstanceSeen, Observation
from tests.orchestration.bench import until

OpenStore = Callable[..., Store]
GPU = InstanceSpec("gpu", "http://127.0.0.1:9", Profile("p", 1000.0, 0.0, 0.0), slots=1)


def seen(
    *instances: tuple[str, str, float], alpha: int | None = None, leader: str = "me"
) -> Observation:
    return Observation(
        instances=tuple(InstanceSeen(name, "", state, None, at) for name, state, at in instances),
        alpha=None if alpha is None else Alpha(alpha, 0.5, "normalised", 1000.0, "tuned"),
        leader=leader,
        present=True,
    )


def names(happenings: tuple[Happening, ...]) -> list[tuple[str, str]]:
    return [(one.event.removeprefix("hexprefect."), one.name) for one in happenings]


def test_what_is_as_it_was_is_no_news() -> None:
    observer = FleetObserver("me")
    now = seen(("a", "alive", 1.0), alpha=1)
    assert observer.notice(now, [], now=5000.0) == ()
    assert observer.notice(now, [], now=5001.0) == ()


def test_changes_are_told_once_with_what_was_before() -> None:
    observer = FleetObserver("me")
    observer.notice(seen(("a", "alive", 1.0), alpha=1), [], now=5000.0)
    changed = seen(("a", "dead", 5000.5), ("b", "alive", 5000.6), alpha=2)
    told = observer.notice(changed, [], now=5001.0)
    assert names(told) == [
        ("instance.dead", "a"),
        ("instance.alive", "b"),
        ("alpha.changed", "α = 0.5"),
    ]
    assert told[0].payload["before"] == "alive"
    assert told[0].occurred_at == 5000.5
    assert observer.notice(changed, [], now=5002.0) == ()


def test_who_is_not_the_leader_tells_nothing_until_the_leader_dies() -> None:
    observer = FleetObserver("me")
    observer.notice(seen(("a", "alive", 1.0), leader="other"), [], now=5000.0)
    dead = seen(("a", "dead", 5000.5), leader="other")
    assert observer.notice(dead, [], now=5001.0) == ()
    now_leader = seen(("a", "dead", 5000.5), leader="me")
    assert names(observer.notice(now_leader, [], now=5020.0)) == [("instance.dead", "a")]


def test_who_becomes_the_leader_much_later_does_not_tell_old_news() -> None:
    observer = FleetObserver("me")
    observer.notice(seen(("a", "alive", 1.0), leader="other"), [], now=5000.0)
    dead = seen(("a", "dead", 5000.5), leader="other")
    observer.notice(dead, [], now=5001.0)
    observer.notice(dead, [], now=5100.0)
    assert observer.notice(seen(("a", "dead", 5000.5)), [], now=5101.0) == ()


def test_a_process_that_joins_just_after_a_death_tells_of_it() -> None:
    """The process that saw it may have died of the same cause."""
    observer = FleetObserver("me")
    told = observer.notice(seen(("a", "dead", 4990.0), ("b", "alive", 4990.0)), [], now=5000.0)
    assert names(told) == [("instance.dead", "a")]


def risky(query: str, *, overdue: bool) -> dict[str, Any]:
    return {
        **dict.fromkeys(("left_s", "open_s", "slo_s"), 1.0),
        **dict.fromkeys(("tenant", "database", "question"), "x"),
        "id": query,
        "arrived_at": 10.0,
        "deadline": 20.0,
        "overdue": overdue,
    }


def test_a_query_is_at_risk_once_and_overdue_once() -> None:
    observer = FleetObserver("me")
    told = [
        names(observer.notice(seen(), [risky("q", overdue=overdue)], now=15.0))
        for overdue in (False, False, True, True)
    ]
    assert told == [[("query.at-risk", "x")], [], [("query.overdue", "x")], []]


states = st.sampled_from(["alive", "suspect", "dead"])


@given(st.lists(st.tuples(states, st.booleans()), min_size=1, max_size=12))
def test_two_observers_that_take_turns_tell_every_change_exactly_once(
    history: list[tuple[str, bool]],
) -> None:
    """By the ids that the server knows events by: of the event, its subject and its time."""
    observers = {name: FleetObserver(name) for name in ("a", "b")}
    for observer in observers.values():
        observer.notice(seen(("gpu", "alive", 0.0), leader="a"), [], now=1000.0)
    told, changes, state, changed_at = set(), set(), "alive", 0.0
    for step, (new, first_leads) in enumerate(history):
        now = 1001.0 + step
        if new != state:
            state, changed_at = new, now
            changes.add((events.INSTANCE_STATES[new], "instance.gpu", now))
        leader = "a" if first_leads else "b"
        for observer in observers.values():
            for one in observer.notice(
                seen(("gpu", state, changed_at), leader=leader), [], now=now
            ):
                told.add((one.event, one.subject, one.occurred_at))
    for leader in ("a", "b"):
        for observer in observers.values():
            for one in observer.notice(
                seen(("gpu", state, changed_at), leader=leader), [], now=1020.0
            ):
                told.add((one.event, one.subject, one.occurred_at))
    assert told == changes


# -- against a store ----------------------------------------------------------------------------


def test_a_store_is_observed(store_url: str, open_store: OpenStore) -> None:
    store = open_store(store_url)
    observer = FleetObserver(store.process)
    told: list[Happening] = []
    store.transact(lambda tx: enter_instance(tx, GPU))
    assert look(store, observer, told.append) is False, "it does not take part yet"
    store.transact(leases.join)
    assert look(store, observer, told.append) is True
    told.clear()
    store.transact(lambda tx: set_instance_state(tx, "gpu", "dead", reason="refused"))
    store.transact(lambda tx: set_alpha(tx, 0.25, reason="by hand"))
    look(store, observer, told.append)
    look(store, observer, told.append)
    assert names(tuple(told)) == [("instance.dead", "gpu"), ("alpha.changed", "α = 0.25")]
    assert told[0].payload == {"before": "alive", "reason": "refused"}
    assert told[1].payload["reason"] == "by hand"


def test_only_the_process_that_has_taken_part_for_longest_tells(
    store_url: str, open_store: OpenStore
) -> None:
    first, second = open_store(store_url), open_store(store_url)
    first.transact(lambda tx: enter_instance(tx, GPU))
    observers = {store: FleetObserver(store.process) for store in (first, second)}
    told: dict[Store, list[Happening]] = {first: [], second: []}
    for store in (first, second):
        store.transact(leases.join)
    for store in (first, second):
        look(store, observers[store], told[store].append)
    first.transact(lambda tx: set_instance_state(tx, "gpu", "draining", reason="by hand"))
    for store in (second, first):
        told[store].clear()
        look(store, observers[store], told[store].append)
    assert (len(told[first]), len(told[second])) == (1, 0)

    first.transact(lambda tx: set_instance_state(tx, "gpu", "alive", reason="by hand"))
    look(second, observers[second], told[second].append)
    first.transact(leases.leave)
    look(second, observers[second], told[second].append)
    assert ("instance.alive", "gpu") in names(tuple(told[second]))


def test_queries_with_little_time_left_are_at_risk(store_url: str, open_store: OpenStore) -> None:
    store = open_store(store_url)
    store.transact(leases.join)
    store.transact(lambda tx: enter_instance(tx, GPU))
    now = store.now()
    arrivals = {"ample": (now, 1e6), "late": (now - 1e6, 1.1e6), "over": (now - 100, 50.0)}
    # The only instance takes a thousand seconds for any request.
    arrivals["long"] = (now, 900.0)
    for query, (arrived_at, slo_s) in arrivals.items():
        new = NewQuery(query, "default", "shop", slo_s, arrived_at, "how many?")
        store.transact(lambda tx, new=new: move_query.register_query(tx, new))
    request = NewRequest(
        "r", "long", "judge", RequestSize(10, 10), arrivals["long"][0] + 900, predict_output=False
    )
    store.transact(lambda tx: move_request.submit(tx, request))
    told: list[Happening] = []
    look(store, FleetObserver(store.process), told.append)
    found = {one.subject.removeprefix("query."): one.event for one in told}
    assert {query: found.get(query) for query in arrivals} == {
        "ample": None,
        "late": events.QUERY_AT_RISK,
        "over": events.QUERY_OVERDUE,
        "long": events.QUERY_AT_RISK,
    }


def test_the_thread_ends_with_its_processs_part_in_the_queue(
    store_url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Happening] = []
    monkeypatch.setattr(Happening, "tell", told.append)
    store = open_store(store_url)
    store.transact(leases.join)
    thread = observe_store(store, every_s=0.01)
    assert observe_store(store, every_s=0.01) is thread
    time.sleep(0.05)
    store.transact(lambda tx: enter_instance(tx, GPU))
    store.transact(lambda tx: set_instance_state(tx, "gpu", "dead", reason="x"))
    until(lambda: any(one.event == "hexprefect.instance.dead" for one in told))
    store.transact(leases.leave)
    thread.join(20)
    assert not thread.is_alive()


def test_a_store_that_has_gone_ends_the_thread(
    new_sqlite_url: str, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(new_sqlite_url)
    store.transact(leases.join)

    def gone(_: object) -> None:
        raise OSError("the disk has gone")

    monkeypatch.setattr(store, "read", gone)
    thread = observe_store(store, every_s=0.001)
    thread.join(20)
    assert not thread.is_alive()


def test_a_risk_is_read_from_running_queries_only(store_url: str, open_store: OpenStore) -> None:
    store = open_store(store_url)
    store.transact(leases.join)
    new = NewQuery("q", "default", "shop", 10.0, store.now() - 100)
    store.transact(lambda tx: move_query.register_query(tx, new))
    store.transact(lambda tx: tx.connection.execute(update(tables.queries).values(state="failed")))
    told: list[Happening] = []
    look(store, FleetObserver(store.process), told.append)
    assert told == []
