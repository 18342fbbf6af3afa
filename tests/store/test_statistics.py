"""What operators follow, read from the store: windows, percentiles, risks, queues."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import RowMapping, event

from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Store, leases
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.fleet import enter_instance
from hexprefect.store.statistics import (
    Window,
    first_waiting,
    fleet_state,
    open_requests,
    queries_at_risk,
    window_of,
)

OpenStore = Callable[..., Store]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_latency_that_so_many_do_not_exceed(
    latencies: list[float], fraction: float
) -> None:
    fraction = round(fraction, 2)
    ordered = tuple(sorted(latencies))
    found = Window(1.0, len(ordered), 0, 0, ordered).percentile_s(fraction)
    wanted = math.ceil(round(fraction * len(ordered), 6))
    assert found == ordered[max(0, wanted - 1)]


def row(state: str, took_s: float, slo_s: float = 10.0) -> RowMapping:
    values: dict[str, Any] = {
        "state": state,
        "arrived_at": 100.0,
        "deadline": 100.0 + slo_s,
        "ended_at": 100.0 + took_s,
    }
    return cast(RowMapping, values)


def test_attainment_counts_failures_as_missed_and_leaves_out_what_was_cancelled() -> None:
    rows = [row("answered", 5), row("answered", 15), row("failed", 1), row("cancelled", 1)]
    window = window_of(rows, 60.0)
    assert (window.answered, window.failed, window.met) == (2, 1, 1)
    assert window.attainment == pytest.approx(1 / 3)
    assert window.latencies_s == (5.0, 15.0)
    assert window_of([], 60.0).attainment is None
    assert window_of([], 60.0).percentile_s(0.95) is None


def submit(store: Store, query: str, *, slo_s: float) -> None:
    new = NewQuery(query, "default", "shop", slo_s, store.now())
    store.transact(lambda tx: move_query.register_query(tx, new))
    request = NewRequest(
        f"r-{query}", query, "judge", RequestSize(10, 10), new.arrived_at + slo_s,
        predict_output=False,
    )  # fmt: skip
    store.transact(lambda tx: move_request.submit(tx, request))


@pytest.fixture
def store(store_url: str, open_store: OpenStore) -> Store:
    opened = open_store(store_url)
    opened.transact(leases.join)
    spec = InstanceSpec("gpu", "http://127.0.0.1:9", Profile("p", 500.0, 0.0, 0.0), slots=1)
    opened.transact(lambda tx: enter_instance(tx, spec))
    return opened


def test_the_most_urgent_wait_first_over_all_queues(store: Store) -> None:
    for query, slo_s in (("runs", 50.0), ("lax", 900.0), ("urgent", 8.0), ("middle", 90.0)):
        submit(store, query, slo_s=slo_s)
    now = store.now()
    waiting = store.read(lambda connection: first_waiting(connection, now=now, most=2))
    assert [one.query_id for one in waiting] == ["urgent", "middle"]
    assert all(one.instance == "gpu" and one.waited_s >= 0 for one in waiting)
    assert waiting[0].laxity_s < waiting[1].laxity_s
    counts = store.read(open_requests)
    assert counts == {"waiting": 3, "admitted": 0, "running": 1}


def test_requests_that_no_instance_has_wait_too(store_url: str, open_store: OpenStore) -> None:
    store = open_store(store_url)
    store.transact(leases.join)
    submit(store, "q", slo_s=60.0)
    now = store.now()
    [waiting] = store.read(lambda connection: first_waiting(connection, now=now))
    assert waiting.instance is None
    assert store.read(open_requests)["waiting"] == 1


def test_a_query_is_at_risk_when_what_it_has_open_takes_longer_than_it_has(store: Store) -> None:
    submit(store, "tight", slo_s=400.0)
    submit(store, "ample", slo_s=40_000.0)
    now = store.now()
    found = store.read(lambda connection: queries_at_risk(connection, now=now))
    assert [(one["id"], one["overdue"]) for one in found] == [("tight", False)]
    assert found[0]["open_s"] == pytest.approx(500.0, abs=100.0)
    later = store.read(lambda connection: queries_at_risk(connection, now=now + 500))
    assert [(one["id"], one["overdue"]) for one in later] == [("tight", True)]


def test_everything_is_one_read_without_a_write(store: Store) -> None:
    submit(store, "q", slo_s=60.0)
    statements: list[str] = []

    @event.listens_for(store.engine, "before_cursor_execute")
    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement.lstrip().split(None, 1)[0].upper())

    now = store.now()
    state = store.read(lambda connection: fleet_state(connection, now=now))
    assert state.window.attainment is None
    assert [load.running for load in state.tenants] == [1]
    assert not {"INSERT", "UPDATE", "DELETE"} & set(statements)
    assert "SELECT" in statements
