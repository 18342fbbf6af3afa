"""The life cycle of a request, on both engines: states, guards, repetition, and who may do what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.scheduling import Profile, Workflow, WorkflowNode
from hexprefect.scheduling.admission import DEFAULT_PATIENCE
from hexprefect.store import LeaseLost
from hexprefect.store import transitions as move_request
from hexprefect.store.values import NeedsUnfinished, NoInstanceFits, QueryEnded


def test_a_request_with_room_runs_at_once(process):
    process.instance("m")
    submitted = process.submit(process.query(), "r")
    assert submitted.state == "running"
    assert submitted.grant is not None
    assert (submitted.grant.attempt, submitted.grant.instance) == (1, "m")
    assert [grant.request_id for grant in process.granted] == ["r"]
    assert process.state("r") == "running"
    assert (process.view("m").occupied, process.view("m").waiting) == (1, 0)


def test_a_request_without_room_waits_and_starts_when_a_slot_frees(process):
    process.instance("m")
    query = process.query()
    first = process.submit(query, "first")
    second = process.submit(query, "second")
    assert (second.state, second.instance, second.grant) == ("waiting", "m", None)
    assert process.view("m").waiting == 1
    process.finish(first)
    assert process.state("first") == "finished"
    assert process.state("second") == "running"
    assert process.granted[-1].request_id == "second"


def test_the_slot_goes_to_the_most_urgent_whoever_submitted_it(process, other):
    process.instance("m")
    running = process.submit(process.query(), "running")
    process.submit(process.query(slo_s=90), "lax")
    other.submit(other.query(slo_s=10), "urgent")
    process.submit(process.query(slo_s=50), "middle")
    process.finish(running)
    assert process.state("urgent") == "admitted"
    [grant] = other.take_admitted()
    assert grant.request_id == "urgent"
    other.finish(grant)
    assert process.state("middle") == "admitted"
    assert [grant.request_id for grant in process.take_admitted()] == ["middle"]


def test_an_overdue_request_goes_before_one_that_is_a_little_less_overdue(process):
    process.instance("m")
    now = process.store.now()
    running = process.submit(process.query(), "running")
    process.submit(process.query(slo_s=1, arrived_at=now - 50), "overdue")
    process.submit(process.query(slo_s=1, arrived_at=now - 500), "long overdue")
    process.submit(process.query(slo_s=100), "in time")
    process.finish(running)
    assert process.state("long overdue") == "running"
    assert process.row("overdue")["budget_s"] < 0


def test_taking_what_was_admitted_twice_takes_it_once(process, other):
    process.instance("m")
    running = process.submit(process.query())
    other.submit(other.query(), "r")
    process.finish(running)
    assert other.state("r") == "admitted"
    assert [grant.request_id for grant in other.take_admitted()] == ["r"]
    assert other.take_admitted() == []
    assert other.state("r") == "running"


def test_finishing_keeps_the_result_and_frees_everything(process):
    process.instance("m")
    submitted = process.submit(process.query(), "r")
    process.finish(submitted, result={"text": "SELECT 6"}, output_tokens=7, cached_tokens=64)
    row = process.row("r")
    assert (row["state"], row["result"]) == ("finished", {"text": "SELECT 6"})
    assert (row["actual_input_tokens"], row["actual_output_tokens"]) == (100, 7)
    assert row["cached_tokens"] == 64
    view = process.view("m")
    assert (view.backlog_s, view.waiting, view.occupied, view.reserved_kv_tokens) == (0, 0, 0, 0)
    [attempt] = process.attempts("r")
    assert (attempt["number"], attempt["outcome"], attempt["instance"]) == (1, "finished", "m")


@pytest.mark.parametrize("ending", ["finish", "fail"])
def test_ending_twice_changes_nothing(process, ending):
    process.instance("m")
    submitted = process.submit(process.query())
    getattr(process, ending)(submitted)
    before = process.snapshot()
    getattr(process, ending)(submitted)
    assert process.snapshot() == before


@pytest.mark.parametrize(
    ("first", "late"),
    [("finish", "fail"), ("fail", "finish"), ("give_back", "finish"), ("finish", "give_back")],
)
def test_the_second_of_two_different_endings_is_refused_and_changes_nothing(process, first, late):
    process.instance("m")
    process.instance("n")
    submitted = process.submit(process.query())
    getattr(process, first)(submitted)
    before = process.snapshot()
    with pytest.raises(LeaseLost, match="not held by this process any more"):
        getattr(process, late)(submitted)
    assert process.snapshot() == before


@pytest.mark.parametrize("ending", ["finish", "fail", "give_back"])
def test_nobody_ends_the_request_of_another_process(process, other, ending):
    process.instance("m")
    submitted = process.submit(process.query())
    before = process.snapshot()
    with pytest.raises(LeaseLost):
        getattr(other, ending)(submitted)
    assert not other.cancel(submitted.request_id)
    assert process.snapshot() == before


def test_a_retry_is_the_next_attempt_of_the_same_request_with_the_time_left(process):
    process.instance("m")
    query = process.query(slo_s=100)
    first = process.submit(query, "r")
    budget_s = process.row("r")["budget_s"]
    process.fail(first, "the connection broke")
    assert process.state("r") == "failed"
    assert process.row("r")["error"] == "the connection broke"
    second = process.submit(query, "r")
    assert second.grant is not None
    assert second.grant.attempt == 2
    assert process.row("r")["error"] is None
    assert process.row("r")["budget_s"] < budget_s
    process.finish(second)
    assert [a["outcome"] for a in process.attempts("r")] == ["failed", "finished"]


def test_a_retry_without_room_waits_on_the_instance_that_it_is_told(process):
    process.instance("m")
    query = process.query()
    process.fail(process.submit(query, "r"))
    running = process.submit(query, "s")
    again = process.submit(query, "r")
    assert (again.state, again.instance, again.grant) == ("waiting", "m", None)
    process.finish(running)
    assert process.state("r") == "running"


def test_submitting_twice_is_submitting_once(process):
    process.instance("m")
    query = process.query()
    request = process.request(query, "r")
    first = process.submit_request(request)
    second = process.submit_request(request)
    assert second.grant == first.grant
    process.submit(query, "s")
    before = process.snapshot()
    assert process.submit(query, "s").state == "waiting"
    assert process.snapshot() == before


def test_a_finished_request_of_the_same_inputs_is_not_run_again(process):
    process.instance("m")
    query = process.query()
    process.finish(process.submit(query, "r", fingerprint="f"), result={"text": "kept"})
    again = process.submit(query, "r", fingerprint="f")
    assert (again.state, again.result, again.grant) == ("finished", {"text": "kept"}, None)
    assert process.row("r")["attempt"] == 1


def test_a_finished_request_of_other_inputs_is_run_again(process):
    process.instance("m")
    query = process.query()
    process.finish(process.submit(query, "r", fingerprint="f"))
    again = process.submit(query, "r", fingerprint="g")
    assert again.grant is not None
    assert again.grant.attempt == 2
    assert process.row("r")["result"] is None
    process.fail(again)
    assert process.state("r") == "failed"


def test_given_back_it_goes_to_another_instance(process):
    process.instance("m")
    process.instance("n")
    submitted = process.submit(process.query(), "r")
    left = submitted.instance
    process.give_back(submitted, "the engine died")
    row = process.row("r")
    assert (row["state"], row["attempt"]) == ("running", 2)
    assert row["instance"] != left
    assert [a["outcome"] for a in process.attempts("r")] == ["moved"]
    assert process.attempts("r")[0]["error"] == "the engine died"
    assert process.view(str(left)).backlog_s == 0
    process.finish(process.granted[-1])


def test_given_back_it_returns_to_the_only_instance_there_is(process):
    process.instance("m")
    submitted = process.submit(process.query(), "r")
    process.give_back(submitted)
    assert process.row("r")["instance"] == "m"
    assert process.granted[-1].attempt == 2


def test_cancelling_frees_the_slot_for_the_next(process):
    process.instance("m")
    query = process.query()
    process.submit(query, "running")
    process.submit(query, "next")
    assert process.cancel("running")
    assert process.state("running") == "cancelled"
    assert process.state("next") == "running"
    assert not process.cancel("running"), "there is nothing left to do"


def test_cancelling_what_waits_takes_its_work_off_the_queue(process):
    process.instance("m")
    query = process.query()
    process.submit(query)
    backlog = process.view("m").backlog_s
    process.submit(query, "r")
    assert process.cancel("r")
    assert process.view("m").backlog_s == backlog
    assert process.view("m").waiting == 0


def test_cancelling_what_is_not_known_is_no_error(process):
    assert not process.cancel("nothing")


# -- law 2 -----------------------------------------------------------------------------------------


def test_a_request_is_refused_while_what_it_needs_has_not_finished(process):
    process.instance("m", slots=4)
    query = process.query()
    one = process.submit(query, "one")
    two = process.submit(query, "two")
    process.finish(one)
    with pytest.raises(NeedsUnfinished, match="needs 2 others, of which 1 have finished"):
        process.submit(query, "three", needs=("one", "two"))
    process.finish(two)
    assert process.submit(query, "three", needs=("one", "two")).state == "running"


def test_a_need_that_failed_or_is_unknown_has_not_finished(process):
    process.instance("m")
    query = process.query()
    process.fail(process.submit(query, "one"))
    for needs in (("one",), ("unheard of",)):
        with pytest.raises(NeedsUnfinished):
            process.submit(query, "two", needs=needs)


# -- budgets ---------------------------------------------------------------------------------------


def test_the_budget_is_the_share_of_the_critical_path(process):
    process.instance("m", Profile("p", 0.0, 0.0, 0.01))
    workflow = Workflow(
        (
            WorkflowNode("link", output_tokens=10),
            WorkflowNode("write", needs=("link",), output_tokens=30),
        )
    )
    query = process.query(slo_s=100, arrived_at=process.store.now())
    process.finish(process.submit(query, "a", stage="link", workflow=workflow))
    row = process.row("a")
    left = query.deadline - row["ready_at"]
    assert row["budget_s"] == pytest.approx(left * 10 / 40)
    process.submit(query, "b", stage="write", workflow=workflow, output_tokens=30)
    row = process.row("b")
    assert row["budget_s"] == pytest.approx(query.deadline - row["ready_at"])
    assert row["latest_start"] == pytest.approx(query.deadline - 0.3)


def test_lengths_are_predicted_from_the_finished_requests_of_the_stage(process):
    process.instance("m")
    query = process.query()
    for index in range(6):
        process.finish(process.submit(query, f"r{index}"), output_tokens=200)
    request = replace(process.request(query, "new"), predict_output=True)
    process.submit_request(request)
    assert process.row("new")["predicted_output_tokens"] == pytest.approx(200)
    assert process.row("new")["kv_tokens"] == 300


# -- queries as guards -----------------------------------------------------------------------------


def test_nothing_is_submitted_to_a_query_that_is_not_running(process):
    process.instance("m")
    query = process.query()
    process.end(query)
    with pytest.raises(QueryEnded, match="is not running"):
        process.submit(query)


def test_nothing_is_submitted_to_the_query_of_another_process(process, other):
    process.instance("m")
    query = process.query()
    with pytest.raises(QueryEnded, match="runs in another process"):
        other.submit(query)


def test_an_id_belongs_to_one_query(process):
    process.instance("m")
    process.finish(process.submit(process.query(), "r"))
    with pytest.raises(CallerMistake, match="belongs to query"):
        process.submit(process.query(), "r")


# -- memory ----------------------------------------------------------------------------------------


def small_memory(tokens: int) -> Profile:
    return Profile("p", 0.1, 0.001, 0.01, kv_tokens=tokens)


def test_memory_is_reserved_and_given_back(process):
    process.instance("m", small_memory(1000), slots=8)
    query = process.query()
    first = process.submit(query, "a", input_tokens=600)
    assert process.view("m").reserved_kv_tokens == 610
    assert process.submit(query, "b", input_tokens=600).state == "waiting"
    assert process.submit(query, "c", input_tokens=200).state == "running", "a smaller one passes"
    assert process.row("b")["passed_over"] == 1
    process.finish(first)
    assert process.state("b") == "running"
    assert process.view("m").reserved_kv_tokens == 610 + 210


def test_a_large_request_is_not_passed_over_for_ever(process):
    process.instance("m", small_memory(1000), slots=8)
    query = process.query()
    running = [process.submit(query, input_tokens=400)]
    process.submit(query, "large", input_tokens=900)
    for _ in range(DEFAULT_PATIENCE):
        running.append(process.submit(query, input_tokens=20))
        assert running[-1].state == "running"
        process.finish(running.pop())
    assert process.submit(query, "small", input_tokens=20).state == "waiting"
    process.finish(running.pop())
    assert process.state("large") == "running"


def test_what_no_instance_could_ever_hold_is_refused_at_once(process):
    process.instance("small", small_memory(1000))
    process.instance("short", context_tokens=512)
    query = process.query()
    with pytest.raises(NoInstanceFits, match=r"needs 5010 tokens .*short 512, small 1000"):
        process.submit(query, "r", input_tokens=5000)
    assert process.counts() == {}
    process.instance("large", small_memory(10_000))
    assert process.submit(query, "r", input_tokens=5000).instance == "large"


@pytest.mark.parametrize("state", ["dead", "draining"])
def test_what_an_instance_that_is_away_can_hold_waits_for_it(process, state):
    process.instance("small", small_memory(1000))
    process.instance("large", small_memory(10_000))
    process.set_state("large", state)
    submitted = process.submit(process.query(), "r", input_tokens=5000)
    assert (submitted.state, submitted.instance) == ("waiting", None)
    process.set_state("large", "alive")
    assert process.row("r")["instance"] == "large"
    assert process.state("r") == "running"


def test_what_waits_for_any_instance_is_ended_when_those_that_come_are_too_small(process):
    process.submit(process.query(), "r", input_tokens=5000)
    assert process.state("r") == "waiting"
    process.instance("small", small_memory(1000))
    assert process.state("r") == "failed"
    assert process.row("r")["error"] == "no instance can hold it"


def test_the_context_length_is_a_limit_of_its_own(process):
    process.instance("short", context_tokens=512)
    process.instance("tall", Profile("p", 9.0, 0.1, 0.1), context_tokens=4096)
    assert process.submit(process.query(), input_tokens=1000).instance == "tall"


# -- larger than its instance -------------------------------------------------------------------


def outgrow(process, running, *, context_tokens=150):
    grant = running.grant
    assert grant is not None
    process.store.transact(
        lambda tx: move_request.outgrow(
            tx,
            request_id=grant.request_id,
            attempt=grant.attempt,
            input_tokens=200,
            context_tokens=context_tokens,
            why="the prompt has 200 tokens",
        )
    )


def test_what_outgrows_its_instance_moves_to_one_that_holds_it(process):
    process.instance("small")
    query = process.query()
    running = process.submit(query)
    process.instance("large", Profile("slow", 0.4, 0.004, 0.04), slots=2)
    outgrow(process, running)
    [grant] = process.take_admitted() or process.granted[-1:]
    assert (grant.instance, grant.attempt) == ("large", 2)
    row = process.row(running.request_id)
    assert (row["input_tokens"], row["kv_tokens"]) == (200, 210)
    assert [attempt["outcome"] for attempt in process.attempts(running.request_id)] == ["moved"]
    again = process.submit(query, input_tokens=180)
    assert again.instance == "large", "what the small one holds is known from now on"
    assert process.submit(query, input_tokens=100).instance == "small"


def test_what_outgrows_every_instance_is_told_so_and_stays_where_it_was(process):
    process.instance("small")
    process.instance("medium", Profile("slow", 0.4, 0.004, 0.04), context_tokens=160)
    query = process.query()
    running = process.submit(query)
    assert running.instance == "small"
    with pytest.raises(NoInstanceFits, match="more than any instance holds"):
        outgrow(process, running)
    row = process.row(running.request_id)
    assert (row["state"], row["instance"], row["input_tokens"]) == ("running", "small", 100)
    process.fail(running)


def test_nobody_else_can_outgrow_it(process):
    process.instance("small")
    query = process.query()
    running = process.submit(query)
    process.give_back(running)
    process.instance("large", Profile("slow", 0.4, 0.004, 0.04))
    with pytest.raises(LeaseLost):
        outgrow(process, running)
    process.cancel(running.request_id)
