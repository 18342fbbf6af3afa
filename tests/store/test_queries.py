"""The life of a query: registered, resumed after a restart, ended with a reason (laws 6 and 10)."""

from __future__ import annotations

import math

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.store import LeaseLost, UnknownTenant
from hexprefect.store.queries import add_tenant, end_query
from hexprefect.store.values import QueryEnded, UnknownQuery


def test_a_query_has_the_deadline_of_its_arrival_and_its_slo(process):
    query = process.query(slo_s=30, arrived_at=1000.0, question="How many?")
    assert (query.deadline, query.resumed) == (1030.0, False)
    row = process.query_row(query)
    assert (row["state"], row["owner"], row["question"]) == ("running", process.id, "How many?")


@pytest.mark.parametrize("slo_s", [0, -1, math.nan, math.inf, 31 * 24 * 3600])
def test_an_slo_that_makes_no_sense_is_the_callers_mistake(process, slo_s):
    with pytest.raises(CallerMistake, match="makes no sense"):
        process.query(slo_s=slo_s)


def test_an_unknown_or_disabled_tenant_is_told_whom_there_is(process):
    process.store.transact(lambda tx: add_tenant(tx, "acme"))
    process.store.transact(lambda tx: add_tenant(tx, "gone", enabled=False))
    with pytest.raises(UnknownTenant, match=r"'nobody' is not known.*acme, default"):
        process.query(tenant="nobody")
    with pytest.raises(UnknownTenant, match="'gone' is disabled"):
        process.query(tenant="gone")
    process.store.transact(lambda tx: add_tenant(tx, "gone", default_slo_s=5.0))
    process.query(tenant="gone")


def test_registering_makes_the_process_known(new_process, process):
    """Else nobody would end what it held, were it taken for dead just before."""
    process.store.transact(lambda tx: tx.connection.exec_driver_sql("DELETE FROM processes"))
    process.query()
    found = process.store.read(
        lambda connection: connection.exec_driver_sql("SELECT id FROM processes").scalars().all()
    )
    assert found == [process.id]


def test_ending_cancels_what_is_open_and_frees_what_it_held(process):
    process.instance("m")
    query = process.query()
    process.submit(query, "running")
    process.submit(query, "waiting")
    process.submit(process.query(), "of another query")
    process.end(query, "failed", reason="no candidate parses", dropped_work=["unit_tests"])
    assert process.state("running") == process.state("waiting") == "cancelled"
    assert process.row("running")["error"] == "its query ended: no candidate parses"
    assert process.state("of another query") == "running"
    row = process.query_row(query)
    assert (row["state"], row["reason"]) == ("failed", "no candidate parses")
    assert row["dropped_work"] == ["unit_tests"]
    assert row["ended_at"] >= row["arrived_at"]


def test_an_ended_query_stays_as_it_is(process):
    query = process.query()
    process.end(query, "answered", sql="SELECT 6", answer={"rows": [[6]]})
    before = process.snapshot()
    process.end(query, "failed", reason="too late")
    assert process.snapshot() == before
    assert process.query_row(query)["answer"] == {"rows": [[6]]}


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_query_never_ends_without_a_reason(process, state):
    query = process.query()
    process.end(query, state)
    assert process.query_row(query)["reason"]


def test_ending_an_unknown_query_says_so(process):
    with pytest.raises(UnknownQuery, match="No query 'nothing'"):
        process.store.transact(_end_nothing)


def _end_nothing(tx):
    end_query(tx, "nothing", state="answered")


# -- started again ---------------------------------------------------------------------------------


def test_started_again_it_keeps_its_deadline_and_what_had_finished(process, other):
    process.instance("m", slots=2)
    query = process.query("q", slo_s=60)
    process.finish(process.submit(query, "done", fingerprint="f"), result={"text": "kept"})
    process.submit(query, "running")
    again = other.query("q", slo_s=9999, arrived_at=other.store.now() + 500)
    assert (again.resumed, again.deadline) == (True, query.deadline)
    kept = other.submit(again, "done", fingerprint="f")
    assert kept.result == {"text": "kept"}
    assert other.state("running") == "failed"
    assert other.row("running")["error"] == "its query was started again"
    rerun = other.submit(again, "running")
    assert rerun.grant is not None
    assert rerun.grant.attempt == 2
    other.finish(rerun)


def test_who_had_it_before_can_neither_add_to_it_nor_finish_nor_end_it(process, other):
    process.instance("m", slots=4)
    query = process.query("q")
    running = process.submit(query, "running")
    again = other.query("q")
    rerun = other.submit(again, "running")
    before = process.snapshot()
    with pytest.raises(LeaseLost):
        process.finish(running)
    with pytest.raises(QueryEnded, match="runs in another process"):
        process.submit(query, "more")
    process.end(query, "failed", reason="a late word")
    assert not process.cancel("running")
    assert process.snapshot() == before
    other.finish(rerun)
    other.end(again)
    assert other.query_row(again)["state"] == "answered"


def test_an_answered_query_may_be_asked_again(process):
    query = process.query("q")
    process.end(query, "answered", sql="SELECT 1", answer={"rows": []})
    assert process.query("q").resumed
    row = process.query_row(query)
    assert (row["state"], row["ended_at"], row["answer"]) == ("running", None, None)
