"""Law 6: what a dead process held is ended with that reason, and its slots go to others."""

from __future__ import annotations

import pytest

from hexprefect.store import LeaseLost, leases
from hexprefect.store.values import QueryEnded


def test_what_a_dead_process_held_is_reported_and_its_slot_goes_on(process, new_process):
    process.instance("m")
    dead = new_process("dead", lease_s=-1.0)
    query = dead.query()
    dead.submit(query, "running")
    dead.submit(query, "waiting")
    process.submit(process.query(), "mine")
    assert process.state("mine") == "waiting"
    assert process.expire() == ("dead",)
    assert process.state("running") == process.state("waiting") == "failed"
    assert process.row("running")["error"] == leases.DIED
    assert [a["outcome"] for a in process.attempts("running")] == ["lost"]
    assert process.state("mine") == "running"
    row = process.query_row(query)
    assert (row["state"], row["reason"]) == ("failed", leases.DIED)


def test_expiring_twice_finds_nothing_more(process, new_process):
    new_process("dead", lease_s=-1.0)
    assert process.expire() == ("dead",)
    assert process.expire() == ()


def test_a_heartbeat_keeps_the_leases(process, new_process):
    process.instance("m")
    late = new_process("late", lease_s=-1.0)
    running = late.submit(late.query(), "r")
    assert late.store.transact(lambda tx: leases.beat(tx, lease_s=60.0))
    assert process.expire() == ()
    late.finish(running)


def test_a_process_that_was_taken_for_dead_is_told_and_joins_anew(process, new_process):
    late = new_process("late", lease_s=-1.0)
    process.expire()
    assert not late.store.transact(leases.beat)
    assert late.store.transact(leases.beat)


def test_a_late_finisher_changes_nothing(process, new_process):
    process.instance("m")
    late = new_process("late", lease_s=-1.0)
    running = late.submit(late.query(), "r")
    process.expire()
    process.submit(process.query(), "next")
    before = process.snapshot()
    for ending in (late.finish, late.give_back):
        with pytest.raises(LeaseLost):
            ending(running)
    late.fail(running)  # as it was reported already
    assert not late.cancel("r")
    assert late.take_admitted() == []
    assert process.snapshot() == before


def test_a_process_taken_for_dead_goes_on_with_a_query_that_nobody_took_up(process, new_process):
    process.instance("m")
    late = new_process("late", lease_s=-1.0)
    query = late.query()
    late.finish(late.submit(query, "done", fingerprint="f"), result={"text": "kept"})
    late.submit(query, "r")
    process.expire()
    assert late.submit(query, "done", fingerprint="f").result == {"text": "kept"}
    again = late.submit(query, "r")
    assert again.grant is not None
    assert again.grant.attempt == 2
    assert late.query_row(query)["state"] == "running"
    late.finish(again)
    late.end(query)
    assert late.query_row(query)["state"] == "answered"


def test_it_does_not_go_on_with_one_that_somebody_took_up(process, new_process):
    process.instance("m")
    late = new_process("late", lease_s=-1.0)
    query = late.query("q")
    process.expire()
    process.query("q")
    with pytest.raises(QueryEnded, match="runs in another process"):
        late.submit(query)


def test_leaving_ends_what_is_still_held(process, other):
    process.instance("m")
    query = other.query()
    other.submit(query, "r")
    process.submit(process.query(), "mine")
    other.store.transact(leases.leave)
    assert process.state("r") == "failed"
    assert process.row("r")["error"] == "the process that ran it was stopped"
    assert process.state("mine") == "admitted"
    assert process.query_row(query)["state"] == "failed"


def test_a_request_admitted_for_a_process_that_died_goes_to_nobody_else(process, new_process):
    process.instance("m")
    running = process.submit(process.query())
    dead = new_process("dead", lease_s=-1.0)
    dead.submit(dead.query(), "r")
    process.finish(running)
    assert process.state("r") == "admitted"
    process.expire()
    assert process.state("r") == "failed"
    [attempt] = process.attempts("r")
    assert (attempt["outcome"], attempt["owner"]) == ("lost", "dead")


def test_joining_twice_is_joining_once(process):
    process.join(60.0)
    process.join(60.0)
