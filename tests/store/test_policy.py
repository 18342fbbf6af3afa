"""The policy of a store: order by laxity of the query, delays that run down, depth, lateness."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from sqlalchemy import select

from hexprefect.errors import CallerMistake
from hexprefect.scheduling import Profile, Workflow, WorkflowNode
from hexprefect.scheduling.depth import LEARN_EVERY, depth_for_slowdown
from hexprefect.store import tables
from hexprefect.store.alpha import set_alpha, set_policy

BATCHING = Profile(
    "batching", fixed_s=0.1, input_s_per_token=0.01, output_s_per_token=0.01, batch_growth=0.01
)


def change_policy(process, **fields):
    process.store.transact(
        lambda tx: set_policy(tx, replace(tx.settings, **fields), reason="a test")
    )


def load_row(process, name):
    return process.store.read(
        lambda connection: connection.execute(
            select(tables.instances).where(tables.instances.c.name == name)
        ).one()
    )


# -- order ----------------------------------------------------------------------------------------

LONG_AFTER = Workflow(
    [
        WorkflowNode("ask", input_tokens=100, output_tokens=10, needs=()),
        WorkflowNode("long", input_tokens=20_000, output_tokens=2_000, needs=("ask",)),
    ]
)


def test_the_query_with_less_time_to_spare_goes_first(process):
    """Two queries with one deadline: the one with more work left after this call is the urgent."""
    process.instance("m")
    running = process.submit(process.query(), "running")
    process.submit(process.query(slo_s=100), "short")
    process.submit(process.query(slo_s=100), "long", workflow=LONG_AFTER)
    assert process.row("long")["remaining_s"] > process.row("short")["remaining_s"] + 20
    process.finish(running)
    assert process.state("long") == "running"


def test_each_order_has_its_own_key(process):
    process.instance("m")
    process.submit(process.query(), "running")
    query = process.query(slo_s=100)
    keys = {}
    for order in tables.LIVE_ORDERS:
        change_policy(process, order=order)
        process.submit(query, order, workflow=LONG_AFTER)
        keys[order] = process.row(order)["order_key"]
    row = process.row("laxity")
    assert keys["laxity"] == query.deadline - row["remaining_s"]
    assert keys["deadline"] == query.deadline
    assert keys["urgency"] == process.row("urgency")["latest_start"]
    assert keys["arrival"] == process.row("arrival")["ready_at"]


def test_the_engine_is_sent_the_key_of_the_order(process):
    process.instance("m")
    submitted = process.submit(process.query(), "r")
    assert submitted.grant.order_key == process.row("r")["order_key"]


# -- the queue delay ------------------------------------------------------------------------------


def test_a_delay_runs_down_while_nothing_finishes_and_is_zero_when_idle(process):
    process.instance("m", slots=2)
    query = process.query()
    submitted = process.submit(query, "r", input_tokens=1000, output_tokens=1000)
    first = load_row(process, "m").busy_until
    assert first == pytest.approx(
        process.row("r")["submitted_at"] + process.row("r")["work_us"] / 1e6
    )
    time.sleep(0.05)
    second = process.submit(query, "s", input_tokens=1000, output_tokens=1000)
    # Nothing was taken off, and nothing counted from anew: the clock went on.
    assert load_row(process, "m").busy_until == pytest.approx(
        first + process.row("s")["work_us"] / 1e6
    )
    process.finish(submitted)
    assert load_row(process, "m").busy_until > first
    process.finish(second)
    assert load_row(process, "m").busy_until == 0


def test_what_leaves_a_queue_takes_its_delay_along(process):
    process.instance("m")
    query = process.query()
    process.submit(query, "running")
    before = load_row(process, "m").busy_until
    process.submit(query, "waiting", input_tokens=5000)
    assert load_row(process, "m").busy_until > before + 4
    process.cancel("waiting")
    assert load_row(process, "m").busy_until == pytest.approx(before)


def test_a_prompt_goes_where_it_holds_up_nobody(process):
    """Of two equal instances the one is taken on which fewer stand still for the prompt."""
    for name in ("a", "b"):
        process.instance(name, BATCHING, slots=8)
    change_policy(process, alpha=1.0)
    query = process.query()
    first = process.submit(query, input_tokens=2000, output_tokens=1)
    second = process.submit(query, input_tokens=2000, output_tokens=1)
    assert (first.instance, second.instance) == ("a", "b")


# -- depth ----------------------------------------------------------------------------------------


def finish_some(process, number, **counts):
    query = process.query()
    for _ in range(number):
        process.finish(process.submit(query), **counts)


def test_depth_is_bounded_by_the_slowdown_once_enough_has_finished(process):
    process.instance("m", BATCHING, slots=64)
    change_policy(process, slowdown=3.0)
    finish_some(process, LEARN_EVERY, input_tokens=1000, output_tokens=1000, cached_tokens=500)
    wanted = depth_for_slowdown(3.0, BATCHING, uncached_tokens=500, output_tokens=1000)
    assert 2 < wanted < 64
    query = process.query()
    states = [process.submit(query).state for _ in range(wanted + 2)]
    assert states == ["running"] * wanted + ["waiting"] * 2


def test_a_depth_that_an_operator_gave_is_not_changed(process):
    process.instance("m", BATCHING, slots=64, admission_depth=20)
    change_policy(process, slowdown=1.0)
    finish_some(process, LEARN_EVERY, input_tokens=1000, output_tokens=10)
    query = process.query()
    states = [process.submit(query).state for _ in range(21)]
    assert states == ["running"] * 20 + ["waiting"]


def test_a_larger_slowdown_lets_waiting_requests_in_at_once(process):
    process.instance("m", BATCHING, slots=64)
    change_policy(process, slowdown=1.0)
    finish_some(process, LEARN_EVERY, input_tokens=1000, output_tokens=10)
    query = process.query()
    for number in range(5):
        process.submit(query, f"r{number}")
    assert process.view("m").waiting == 3
    change_policy(process, slowdown=None)
    assert process.view("m").waiting == 0


# -- lateness -------------------------------------------------------------------------------------


def test_what_is_late_already_lets_others_go_first_but_not_for_ever(process):
    process.instance("m")
    change_policy(process, late_penalty=3.0)
    now = process.store.now()
    running = process.submit(process.query(), "running")
    process.submit(process.query(slo_s=10, arrived_at=now - 30), "late")
    process.submit(process.query(slo_s=100, arrived_at=now - 95), "in time")
    process.submit(process.query(slo_s=100), "much later")
    assert process.row("late")["late"]
    assert not process.row("in time")["late"]
    process.finish(running)
    assert process.state("in time") == "running"
    process.finish(process.granted[-1])
    # Put off by three SLOs of ten seconds it is due before what has a hundred seconds left.
    assert process.state("late") == "running"


def test_what_becomes_late_while_it_waits_is_put_off_once(process):
    process.instance("m")
    change_policy(process, late_penalty=1000.0)
    running = process.submit(process.query(), "running")
    soon = process.query(slo_s=0.6)
    process.submit(soon, "soon late")
    key = process.row("soon late")["order_key"]
    process.submit(process.query(slo_s=100), "in time")
    process.submit(process.query(slo_s=500), "in time too")
    time.sleep(0.7)
    process.finish(running)
    assert process.state("in time") == "running"
    process.finish(process.granted[-1])
    assert process.state("in time too") == "running"
    row = process.row("soon late")
    assert row["late"]
    assert row["order_key"] == pytest.approx(key + 1000.0 * 0.6)
    process.finish(process.granted[-1])
    assert process.state("soon late") == "running"


def test_what_was_put_off_stays_so_where_it_is_moved_to(process):
    process.instance("m")
    change_policy(process, late_penalty=1000.0)
    now = process.store.now()
    process.submit(process.query(), "running")
    process.submit(process.query(slo_s=10, arrived_at=now - 30), "late")
    key = process.row("late")["order_key"]
    process.set_state("m", "dead")
    process.instance("n")
    row = process.row("late")
    assert row["instance"] == "n"
    assert row["late"]
    assert row["order_key"] == pytest.approx(key)


def test_nothing_is_put_off_by_default(process):
    process.instance("m")
    now = process.store.now()
    running = process.submit(process.query(), "running")
    process.submit(process.query(slo_s=10, arrived_at=now - 300), "late")
    process.submit(process.query(slo_s=100), "in time")
    process.finish(running)
    assert process.state("late") == "running"


# -- remaining work -------------------------------------------------------------------------------


def answer(process, lengths):
    """A query whose calls need one another in turn: one of the stage `ask` after the other."""
    query = process.query()
    needs: tuple[str, ...] = ()
    for visit, output in enumerate(lengths):
        submitted = process.submit(query, needs=needs, visit=visit)
        process.finish(submitted, output_tokens=output)
        needs = (submitted.request_id,)
    process.end(query)


def test_the_work_left_is_learned_from_answered_queries_by_visit(process):
    process.instance("m")
    for _ in range(5):
        answer(process, (10, 400, 100))
    query = process.query()
    rows = []
    for visit in range(3):
        submitted = process.submit(query, f"visit {visit}", visit=visit)
        rows.append(process.row(f"visit {visit}"))
        process.finish(submitted)
    own = 0.1 + 0.001 * 100 + 0.01 * 10
    after = [(0.2 + 0.01 * 400) + (0.2 + 0.01 * 100), 0.2 + 0.01 * 100, 0.0]
    assert [row["remaining_s"] for row in rows] == pytest.approx([own + rest for rest in after])
    # The budget is the share of the time left that this call has of the work left (law 5).
    left = rows[0]["deadline"] - rows[0]["ready_at"]
    assert rows[0]["budget_s"] == pytest.approx(left * own / (own + after[0]))


def test_a_query_that_failed_teaches_nothing(process):
    process.instance("m")
    query = process.query()
    process.finish(process.submit(query, "r"))
    process.end(query, "failed", reason="no answer")
    rows = process.store.read(
        lambda connection: connection.execute(select(tables.remaining_history)).all()
    )
    assert rows == []


# -- changing it ----------------------------------------------------------------------------------


def test_a_new_alpha_leaves_the_rest_of_the_policy(process):
    change_policy(process, order="deadline", slowdown=4.0, late_penalty=1.0, stretch=2.0)
    process.store.transact(lambda tx: set_alpha(tx, 0.25, reason="a test"))
    settings = process.store.transact(lambda tx: tx.settings)
    assert (settings.alpha, settings.order, settings.slowdown) == (0.25, "deadline", 4.0)
    assert (settings.late_penalty, settings.stretch) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", 1.5),
        ("beta", 0.0),
        ("order", "attained"),
        ("slowdown", 0.5),
        ("late_penalty", -1.0),
        ("stretch", float("nan")),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(process, field, value):
    before = process.store.transact(lambda tx: tx.settings)
    with pytest.raises(CallerMistake, match=field if field not in ("alpha", "beta") else "makes"):
        change_policy(process, **{field: value})
    assert process.store.transact(lambda tx: tx.settings) == before
