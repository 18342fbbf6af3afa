"""Instances enter, change, drain, die and return; what waits follows the room there is."""

from __future__ import annotations

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, UnknownInstance
from hexprefect.store import fleet as move_instance

FAST = Profile("fast", fixed_s=0.1, input_s_per_token=0.001, output_s_per_token=0.01)
SLOW = Profile("slow", fixed_s=0.4, input_s_per_token=0.004, output_s_per_token=0.04)


@pytest.mark.parametrize("state", ["draining", "dead"])
def test_the_queue_of_an_instance_that_leaves_moves_to_the_others(process, state):
    process.instance("m")
    process.instance("n")
    query = process.query()
    first, second = process.submit(query), process.submit(query)
    waiting = [process.submit(query, f"w{index}") for index in range(6)]
    assert {"m", "n"} == {submitted.instance for submitted in waiting}
    process.set_state("m", state, reason="maintenance")
    assert process.view("m").waiting == 0
    assert {process.row(submitted.request_id)["instance"] for submitted in waiting} == {"n"}
    assert process.view("m").reason == "maintenance"
    process.finish(first)
    process.finish(second)
    assert process.view("m").backlog_s == 0


def test_with_every_instance_gone_requests_wait_unappointed_and_the_first_to_return_gets_them(
    process,
):
    process.instance("m", slots=2)
    process.instance("n", slots=2)
    process.set_state("m", "dead")
    process.set_state("n", "draining")
    query = process.query()
    for index in range(3):
        assert process.submit(query, f"r{index}").instance is None
    process.set_state("m", "alive")
    assert process.counts() == {"running": 2, "waiting": 1}
    assert {process.row(f"r{index}")["instance"] for index in range(3)} == {"m"}


def test_two_instances_that_return_in_one_commit_share_what_waits(process):
    """Each request is appointed once, although both look for what is unappointed."""
    for name in ("m", "n"):
        process.instance(name)
        process.set_state(name, "dead")
    query = process.query()
    for index in range(4):
        process.submit(query, f"r{index}")

    def both(tx):
        move_instance.set_instance_state(tx, "m", "alive")
        move_instance.set_instance_state(tx, "n", "alive")

    process.store.transact(both)
    assert process.counts() == {"running": 2, "waiting": 2}
    assert process.violations() == []


def test_a_suspect_instance_is_used_only_when_no_other_is_alive(process):
    process.instance("m", FAST, slots=4)
    process.instance("n", SLOW, slots=4)
    process.set_state("m", "suspect")
    query = process.query()
    assert process.submit(query).instance == "n"
    process.set_state("n", "dead")
    assert process.submit(query).instance == "m"


def test_an_idle_instance_takes_over_what_it_ends_clearly_sooner(process):
    process.instance("slow", SLOW)
    query = process.query()
    submitted = [process.submit(query, f"r{index}") for index in range(4)]
    assert {s.instance for s in submitted} == {"slow"}
    process.instance("fast", FAST)
    assert process.row("r1")["instance"] == "fast"
    assert process.state("r1") == "running"
    assert process.row("r0")["instance"] == "slow"


def test_an_instance_does_not_take_over_what_would_end_no_sooner(process):
    process.instance("fast", FAST)
    query = process.query()
    process.submit(query, "running")
    process.submit(query, "next")
    process.instance("slow", Profile("glacial", 60.0, 1.0, 1.0))
    assert process.row("next")["instance"] == "fast"
    assert process.state("next") == "waiting"


def test_an_instance_left_idle_takes_over_when_somebody_looks(process):
    """A queue that falls behind after everything was dispatched: no transition touches the idle."""
    process.instance("slow", SLOW)
    query = process.query()
    process.submit(query, "running")
    process.submit(query, "next")
    process.instance("fast", FAST, slots=1)
    taken = process.granted[-1]
    assert taken.instance == "fast"
    # The clock is moved on by making the slow one's work look longer than it did.
    process.submit(query, "later")
    process.finish(taken)
    process.store.transact(
        lambda tx: tx.connection.exec_driver_sql(
            "UPDATE requests SET instance = 'slow' WHERE state = 'waiting'"
        )
    )
    process.store.transact(_recount)
    process.expire()
    assert process.counts().get("waiting", 0) == 0


def _recount(tx):
    tx.connection.exec_driver_sql(
        """
        UPDATE instances SET
          waiting = (SELECT count(*) FROM requests
                     WHERE instance = instances.name AND requests.state = 'waiting'),
          backlog_us = (SELECT coalesce(sum(completion_us), 0) FROM requests
                        WHERE instance = instances.name
                          AND requests.state IN ('waiting', 'admitted', 'running'))
        """
    )


def test_a_changed_description_counts_from_the_next_dispatch(process):
    process.instance("m", SLOW)
    query = process.query()
    first = process.submit(query, "r")
    spec = InstanceSpec("m", "http://elsewhere", FAST, slots=2)
    assert process.store.transact(lambda tx: move_instance.enter_instance(tx, spec))
    assert not process.store.transact(lambda tx: move_instance.enter_instance(tx, spec))
    assert process.view("m").spec == spec
    second = process.submit(query)
    assert second.state == "running", "the second slot is used"
    assert second.grant.completion_s < first.grant.completion_s
    process.finish(first)
    process.finish(second)
    assert process.view("m").backlog_s == 0


def test_what_an_instance_cannot_hold_any_more_leaves_its_queue(process):
    """Else it would hold up all behind it for ever, once its patience is at an end."""
    memory = Profile("p", 0.1, 0.001, 0.01, kv_tokens=5000)
    process.instance("m", memory)
    query = process.query()
    running = process.submit(query, "running")
    process.submit(query, "large", input_tokens=4000)
    process.submit(query, "small")
    process.instance("m", Profile("p", 0.1, 0.001, 0.01, kv_tokens=1000))
    assert process.row("large")["instance"] is None
    process.finish(running)
    assert process.state("small") == "running"


@pytest.mark.parametrize("fields", [{"slots": 0}, {"slots": -1}, {"admission_depth": 0}])
def test_an_instance_without_a_slot_is_the_callers_mistake(process, fields):
    with pytest.raises(CallerMistake, match="It must be at least 1"):
        process.instance("m", **fields)


def test_the_admission_depth_bounds_what_an_instance_is_given_at_once(process):
    process.instance("m", slots=8, admission_depth=2)
    query = process.query()
    for _ in range(5):
        process.submit(query)
    assert process.counts() == {"running": 2, "waiting": 3}


def test_a_pool_is_made_to_be_exactly_its_instances(process):
    specs = {
        name: InstanceSpec(name, f"http://{name}", FAST, slots=1, pool="gpu") for name in "abc"
    }

    def synchronise(*names):
        wanted = [specs[name] for name in names]
        return process.store.transact(lambda tx: move_instance.synchronise(tx, wanted, pool="gpu"))

    process.instance("elsewhere", pool="cpu")
    assert synchronise("a", "b") == ("a", "b")
    assert synchronise("a", "b") == ()
    assert synchronise("b", "c") == ("c", "a")
    assert process.view("a").state == "draining"
    assert process.view("elsewhere").state == "alive"
    assert synchronise("a", "b", "c") == ("a",)
    assert process.view("a").state == "alive"


def test_what_an_operator_drains_is_left_to_drain_when_its_pool_is_read_again(process):
    spec = InstanceSpec("m", "http://m", FAST, slots=1, pool="gpu")

    def synchronise(**options):
        process.store.transact(
            lambda tx: move_instance.synchronise(tx, [spec], pool="gpu", **options)
        )
        return process.view("m").state

    assert synchronise() == "alive"
    process.set_state("m", "draining", "by an operator")
    assert synchronise() == "draining"
    process.set_state("m", "alive")
    process.set_state("m", "draining", move_instance.paused_reason("gpu"))
    assert synchronise(paused=True) == "draining"
    assert synchronise() == "alive", "the pool is paused no longer"


def test_an_instance_is_removed_once_nothing_remembers_it(process):
    process.instance("m")
    process.instance("n")
    query = process.query()
    submitted = process.submit(query)
    used, unused = submitted.instance, {"m", "n"} - {submitted.instance}
    assert process.store.transact(lambda tx: move_instance.remove_instance(tx, unused.pop()))
    assert not process.store.transact(lambda tx: move_instance.remove_instance(tx, used))
    assert process.view(used).state == "draining"
    process.finish(submitted)


def test_an_unknown_instance_is_told_which_there_are(process):
    process.instance("m")
    with pytest.raises(UnknownInstance, match=r"No instance 'x'.*Known: m"):
        process.set_state("x", "dead")


def test_a_dead_instance_forgets_the_prefixes_that_it_held(process):
    process.instance("m")
    prefix = (("schema:shop", 80),)
    process.finish(process.submit(process.query(), prefix=prefix))
    assert process.view("m").held_prefixes == prefix
    process.set_state("m", "dead")
    assert process.view("m").held_prefixes == ()


def test_dispatch_prefers_the_instance_that_holds_the_prefix(process):
    process.instance("m", slots=4)
    process.instance("n", slots=4)
    query = process.query()
    prefix = (("schema:shop", 900),)
    process.set_state("m", "suspect")
    process.finish(process.submit(query, prefix=prefix, input_tokens=1000))
    process.set_state("m", "alive")
    submitted = process.submit(query, prefix=prefix, input_tokens=1000)
    assert submitted.instance == "n"
    assert submitted.grant.completion_s == pytest.approx(0.1 + 0.001 * 100 + 0.01 * 10)
