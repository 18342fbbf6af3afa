"""Recorded history: rows of the store become a workload, a cluster, decisions to replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, insert, text

from hexprefect.scheduling import Profile, dispatch
from hexprefect.simulator.recorded import (
    NothingRecorded,
    Window,
    changed_decisions,
    read_cluster,
    read_window,
    window_from_rows,
)
from hexprefect.store import Store, tables
from hexprefect.store.load import profile_columns
from hexprefect.store.transaction import Transaction


def query_row(number: int, arrived_at: float) -> dict[str, object]:
    return {
        "id": f"q{number}",
        "tenant": "t",
        "database": "d",
        "slo_s": 30.0,
        "arrived_at": arrived_at,
        "ended_at": arrived_at + 4.0,
    }


def request_row(number: int, name: str, needs: list[str], **changed: object) -> dict[str, object]:
    row: dict[str, object] = {
        "id": f"q{number}-{name}",
        "query_id": f"q{number}",
        "stage": name,
        "needs": needs,
        "input_tokens": 100,
        "actual_input_tokens": 110,
        "actual_output_tokens": 20,
        "prefix": [["static", 50]],
        "ready_at": 0.0,
    }
    return row | changed


def test_a_window_keeps_moments_slos_lengths_and_needs() -> None:
    window = window_from_rows(
        [query_row(1, 1000.0), query_row(2, 1010.0)],
        [
            request_row(1, "a", []),
            request_row(1, "b", ["q1-a"]),
            request_row(1, "c", ["q1-a", "lost"]),
            request_row(2, "a", [], actual_input_tokens=None, actual_output_tokens=None),
        ],
    )
    first, second = window.queries
    assert [call.needs for call in first.calls] == [(), (0,), (0,)]
    assert first.calls[0].input_tokens == 110
    assert first.calls[0].prefix == (("static", 50),)
    assert (first.arrived_at, first.slo_s, first.tenant) == (1000.0, 30.0, "t")
    assert second.calls[0].input_tokens == 100
    assert window.rate == pytest.approx(0.1)
    assert window.latency_s == (4.0, 4.0)


def test_queries_without_requests_do_not_count() -> None:
    with pytest.raises(NothingRecorded, match="1 answered"):
        window_from_rows([query_row(1, 0.0), query_row(2, 1.0)], [request_row(1, "a", [])])


def test_the_tables_are_read_by_name() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE queries (id, tenant, 'database', slo_s, arrived_at, ended_at, state)",
            "CREATE TABLE requests (id, query_id, stage, needs, input_tokens, "
            "actual_input_tokens, actual_output_tokens, prefix, ready_at, state)",
            "CREATE TABLE instances "
            "(name, profile, learned_profile, slots, admission_depth, state)",
            "INSERT INTO queries VALUES ('q1','t','d',9,100,104,'answered'),"
            "('q2','t','d',9,101,104,'answered'),('q3','t','d',9,102,104,'failed'),"
            "('q0','t','d',9,1,2,'answered')",
            "INSERT INTO requests VALUES "
            "('r1','q1','s','[]',10,11,5,'[]',100,'finished'),"
            "('r2','q1','s','[\"r1\"]',10,11,5,'[]',101,'finished'),"
            "('r3','q2','s','[]',10,11,5,'[]',101,'finished'),"
            "('r4','q2','s','[]',10,NULL,NULL,'[]',101,'cancelled')",
        ):
            connection.execute(text(statement))
        profile = {
            "name": "p",
            "fixed_s": 0.1,
            "input_s_per_token": 0.01,
            "output_s_per_token": 0.02,
            "batch_growth": 0.0,
            "kv_tokens": None,
        }
        with pytest.raises(NothingRecorded):
            read_cluster(connection)
        connection.execute(
            text("INSERT INTO instances VALUES ('i1', :profile, :learned, 8, 4, 'alive')"),
            {"profile": json.dumps(profile), "learned": json.dumps({"input_s_per_token": 0.5})},
        )
        window = read_window(connection, since=50.0)
        cluster = read_cluster(connection)
    assert [len(query.calls) for query in window.queries] == [2, 1]
    assert cluster.instances[0].options.slots == 4
    assert cluster.profiles[0].output_s_per_token == 0.02
    assert cluster.profiles[0].input_s_per_token == 0.5  # as learned, not as described


def enter_queries(store: Store, moments: list[float]) -> None:
    """Answered queries of one call each, as long as the query's number plus one."""
    queries = [
        {
            "id": f"q{number}",
            "tenant": "default",
            "database": "d",
            "owner": "p",
            "slo_s": 30.0,
            "arrived_at": moment,
            "deadline": moment + 30.0,
            "state": "answered",
            "ended_at": moment + 4.0,
        }
        for number, moment in enumerate(moments)
    ]
    requests = [
        {
            "id": f"r{number}",
            "query_id": f"q{number}",
            "stage": "s",
            "needs": [],
            "state": "finished",
            "owner": "p",
            "input_tokens": number + 1,
            "predicted_output_tokens": 5.0,
            "kv_tokens": 10,
            "prefix": [],
            "submitted_at": moment,
            "ready_at": moment,
            "budget_s": 1.0,
            "latest_start": moment,
            "order_key": moment,
        }
        for number, moment in enumerate(moments)
    ]

    def write(tx: Transaction) -> None:
        tx.connection.execute(insert(tables.queries), queries)
        tx.connection.execute(insert(tables.requests), requests)

    store.transact(write)


def lengths(window: Window) -> list[int]:
    return [call.input_tokens for query in window.queries for call in query.calls]


def test_the_newest_queries_of_a_stretch_are_read_in_order_of_arrival(
    store_url: str, open_store: Callable[[str], Store]
) -> None:
    store = open_store(store_url)
    enter_queries(store, [100.0, 400.0, 300.0, 200.0, 500.0, 300.0])
    newest = store.read(lambda c: read_window(c, most=4))
    assert [query.arrived_at for query in newest.queries] == [300.0, 300.0, 400.0, 500.0]
    assert lengths(newest) == [3, 6, 2, 5]
    between = store.read(lambda c: read_window(c, since=200.0, until=400.0))
    assert [query.arrived_at for query in between.queries] == [200.0, 300.0, 300.0]
    assert between.rate == pytest.approx(0.02)
    newest_between = store.read(lambda c: read_window(c, since=100.0, until=400.0, most=2))
    assert lengths(newest_between) == [3, 6]


def test_only_the_requests_of_the_queries_taken_are_read(
    store_url: str, open_store: Callable[[str], Store]
) -> None:
    store = open_store(store_url)
    enter_queries(store, [float(moment) for moment in range(50)])
    read: list[int] = []

    def counted(connection: Connection) -> Window:
        def count(*arguments: Any) -> None:
            read.append(len(arguments[3]))

        event.listen(connection, "before_cursor_execute", count)
        return read_window(connection, since=10.0, most=3)

    assert lengths(store.read(counted)) == [48, 49, 50]
    # The bounds of the window, then the ids of its queries.
    assert read[-2:] == [3, 3]


def test_an_instance_that_is_given_nothing_is_not_in_the_cluster(
    store_url: str, open_store: Callable[[str], Store]
) -> None:
    store = open_store(store_url)
    profile = profile_columns(Profile("p", 0.1, 0.01, 0.02))
    rows = [
        {"name": state, "url": "u", "profile": profile, "slots": 8, "state": state,
         "changed_at": 0.0}
        for state in tables.INSTANCE_STATES
    ]  # fmt: skip
    store.transact(lambda tx: tx.connection.execute(insert(tables.instances), rows))
    cluster = store.read(read_cluster)
    assert [instance.name for instance in cluster.instances] == ["alive", "suspect"]


def test_a_decision_log_replays_and_a_forged_one_is_found() -> None:
    true = dispatch(["a", "b"], [1.0, 2.0], [5.0, 0.0], alpha=0.3).as_record()
    forged = true | {"instance": "a" if true["instance"] == "b" else "b"}
    assert changed_decisions([true, forged, true]) == [1]
