"""`check_laws` finds each law that is broken: here each is, on purpose, by SQL."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import text

from hexprefect.scheduling import Profile
from hexprefect.store.laws import LAWS


@pytest.fixture
def busy(process):
    """A lawful store in which every kind of row exists; what breaks it is up to the test."""
    process.lawful = False
    process.instance("m", Profile("p", 0.1, 0.001, 0.01, kv_tokens=10_000), slots=2)
    query = process.query("q", slo_s=100)
    process.finish(process.submit(query, "done"))
    process.submit(query, "after", needs=("done",))
    process.submit(query, "running")
    process.submit(query, "waiting")
    process.submit(query, "last")
    process.cancel("last")
    process.end(process.query("ended"), "failed", reason="no answer")
    assert process.violations() == []
    return process


def execute(process, *statements):
    def run(tx):
        if tx.connection.dialect.name == "postgresql":
            tx.connection.execute(text("SET CONSTRAINTS ALL DEFERRED"))
        for statement in statements:
            tx.connection.execute(text(statement))
        tx.instances = {}  # what was read before is not written back

    process.store.transact(run)


BREAKAGES = {
    "a finished request is called failed": (
        1,
        "UPDATE requests SET state = 'failed' WHERE id = 'done'",
    ),
    "a cancelled request is called finished": (
        1,
        "UPDATE requests SET state = 'finished' WHERE id = 'last'",
    ),
    "an attempt is lost": (1, "DELETE FROM attempts WHERE request_id = 'done'"),
    "an attempt is counted twice": (
        1,
        "INSERT INTO attempts (request_id, number, owner, admitted_at, ended_at, outcome) "
        "VALUES ('done', 1, 'first', 0, 0, 'finished')",
    ),
    "an ended request has no end": (1, "UPDATE requests SET ended_at = NULL WHERE id = 'done'"),
    "a request starts before its need finishes": (
        2,
        "UPDATE attempts SET ended_at = ended_at + 1000 WHERE request_id = 'done'",
    ),
    "a request starts without its need": (
        2,
        "UPDATE requests SET needs = '[\"nothing\"]' WHERE id = 'after'",
    ),
    "more slots are taken than counted": (
        3,
        "UPDATE instances SET occupied = occupied - 1 WHERE name = 'm'",
    ),
    "more slots are taken than there are": (3, "UPDATE instances SET slots = 1 WHERE name = 'm'"),
    "memory is held that is not reserved": (
        3,
        "UPDATE instances SET reserved_kv_tokens = 1 WHERE name = 'm'",
    ),
    "more memory is held than there is": (
        3,
        "UPDATE instances SET profile = '{profile}' WHERE name = 'm'",
    ),
    "the first in order waits although there is room": (
        4,
        "UPDATE instances SET slots = 3 WHERE name = 'm'",
    ),
    "a request overtakes one before it": (
        4,
        "UPDATE requests SET order_key = order_key + 500 WHERE id = 'after'",
        "UPDATE decisions SET made_at = made_at - 5 WHERE request_id = 'running'",
    ),
    "a budget exceeds the time left": (5, "UPDATE requests SET budget_s = 500 WHERE id = 'done'"),
    "a budget has the wrong sign": (5, "UPDATE requests SET budget_s = -1 WHERE id = 'waiting'"),
    "a request is held by nobody": (6, "UPDATE requests SET owner = 'ghost' WHERE id = 'running'"),
    "the holder has been gone for long": (6, "UPDATE processes SET expires_at = 0"),
    "a request outlives its query": (
        6,
        "UPDATE queries SET state = 'answered', ended_at = 0 WHERE id = 'q'",
    ),
    "a decision does not replay": (
        7,
        "UPDATE decisions SET record = '{decision}' WHERE request_id = 'done'",
    ),
    "a backlog is more than the work": (
        8,
        "UPDATE instances SET backlog_us = backlog_us + 1 WHERE name = 'm'",
    ),
    "more are counted as waiting than wait": (
        8,
        "UPDATE instances SET waiting = waiting + 1 WHERE name = 'm'",
    ),
    "a query failed without a reason": (
        10,
        "UPDATE queries SET reason = NULL WHERE id = 'ended'",
    ),
    "an ended query has no end": (10, "UPDATE queries SET ended_at = NULL WHERE id = 'ended'"),
    "a query runs in no process": (10, "UPDATE queries SET owner = 'ghost' WHERE id = 'q'"),
}

FILLINGS = {
    "{profile}": json.dumps(
        {
            "name": "p",
            "fixed_s": 0.1,
            "input_s_per_token": 0.001,
            "output_s_per_token": 0.01,
            "batch_growth": 0.0,
            "kv_tokens": 150,
        }
    ),
    "{decision}": json.dumps(
        {
            "instance": "m",
            "alpha": 1.0,
            "policy": "normalised",
            "beta": 1.0,
            "scores": [["m", 2.0, 0.0, 1.0], ["n", 1.0, 0.0, 0.5]],
        }
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_law_is_found_and_named(busy, breakage):
    law, *statements = BREAKAGES[breakage]
    for mark, filling in FILLINGS.items():
        statements = [statement.replace(mark, filling) for statement in statements]
    # A colon in JSON is no parameter.
    execute(busy, *(statement.replace(": ", r"\: ") for statement in statements))
    found = busy.violations()
    assert law in {violation.law for violation in found}, found
    assert all(violation.subject and violation.detail for violation in found)


def test_every_law_that_can_be_checked_is_broken_by_some_test():
    assert {law for law, *_ in BREAKAGES.values()} == {law.number for law in LAWS}


def test_a_dead_process_is_a_violation_only_once_somebody_must_have_cleaned_up(process, other):
    process.lawful = False
    process.instance("m")
    other.submit(other.query(), "r")
    assert process.violations(after_s=60.0) == []
    late = process.violations(after_s=180.0)
    assert {violation.law for violation in late} == {6, 10}


def test_the_laws_hold_while_a_finished_request_is_run_again_and_then_cancelled(process):
    process.instance("m", slots=2)
    query = process.query()
    process.finish(process.submit(query, "need", fingerprint="f"))
    process.finish(process.submit(query, "follower", needs=("need",)))
    process.submit(query, "need", fingerprint="g")
    assert process.violations() == []
    process.cancel("need")
    assert process.violations() == []


def test_the_laws_are_read_from_one_snapshot(process, other):
    """Another process commits between two statements of the check: neither sees half of it."""
    process.instance("m")
    query = other.query()
    seen = []

    def look(connection):
        seen.append(connection.exec_driver_sql("SELECT count(*) FROM requests").scalar_one())
        other.submit(query)
        seen.append(connection.exec_driver_sql("SELECT count(*) FROM requests").scalar_one())

    process.store.read(look)
    assert seen == [0, 0]
    assert other.counts() == {"running": 1}
