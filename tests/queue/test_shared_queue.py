"""One process's part in the queue, against real servers: submit, wait, run, move, give up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hexprefect.errors import CallerMistake
from hexprefect.instances.errors import InstanceError, PromptRejected
from hexprefect.queue import NoInstanceInTime, QueueOptions, SharedQueue
from hexprefect.queue.values import QueueClosed
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import StoreNotReady, UnknownTenant
from hexprefect.store.values import QueryEnded
from hexprefect.store.views import query_record

SLOW = Profile("slow", fixed_s=0.5, input_s_per_token=0.0, output_s_per_token=0.001)
ENDLESS = Profile("endless", fixed_s=0.02, input_s_per_token=0.0, output_s_per_token=10.0)
"""Longer than a test takes: what runs there ends because the test ends it."""


async def test_a_prompt_is_completed_and_its_result_is_kept(fleet, queue, prompt):
    await fleet.start("m")
    query = await queue.query(slo_s=30)
    completion = await query.complete(prompt(tokens=8))
    assert completion.text
    assert (completion.instance, completion.attempt) == ("m", 1)
    assert completion.output_tokens == 8
    assert completion.waited_s >= 0
    await query.end("answered", sql="SELECT 6")
    assert fleet.counts() == {"finished": 1}
    assert fleet.idle()


async def test_the_query_of_a_restart_reuses_what_had_finished(fleet, new_queue, prompt):
    await fleet.start("m")
    before, after = await new_queue(), await new_queue()
    query = await before.query(slo_s=30, id="q")
    first = await query.complete(prompt("one"))
    again = await after.query(slo_s=30, id="q")
    assert again.resumed
    assert again.deadline == query.deadline
    reused = await again.complete(prompt("one"))
    assert reused == replace(first, extra={})
    await again.complete(prompt("two"))
    assert fleet.counts() == {"finished": 2}
    with pytest.raises(QueryEnded, match="runs in another process"):
        await query.complete(prompt("three"))
    await again.end("answered")


async def test_more_prompts_than_slots_wait_their_turn(fleet, queue, prompt):
    await fleet.start("m", slots=2)
    query = await queue.query(slo_s=30)
    completions = await asyncio.gather(*(query.complete(prompt(f"{n}")) for n in range(10)))
    assert len({completion.request_id for completion in completions}) == 10
    assert max(completion.waited_s for completion in completions) > 0
    await query.end("answered")
    assert fleet.idle()


async def test_what_follows_on_a_branch_needs_what_was_before_it(fleet, queue, prompt):
    await fleet.start("m", slots=4)
    query = await queue.query(slo_s=30)
    trunk = await query.complete(prompt("link"))
    one = await query.complete(prompt("write", branch="candidate-1"))
    two = await query.complete(prompt("write too", branch="candidate-2"))
    judged = await query.complete(prompt("judge"))
    found = queue.store.read(lambda connection: query_record(connection, query.id))
    record = {row["id"]: set(row["needs"]) for row in found["requests"]}
    assert record[trunk.request_id] == set()
    assert record[one.request_id] == record[two.request_id] == {trunk.request_id}
    assert record[judged.request_id] == {trunk.request_id, one.request_id, two.request_id}
    await query.end("answered")


# -- when instances fail ------------------------------------------------------------------------


async def test_a_request_moves_when_its_instance_dies_in_the_middle(
    fleet, queue, prompt, eventually
):
    doomed = await fleet.start("doomed", ENDLESS, slots=2)
    query = await queue.query(slo_s=60)
    running = [asyncio.create_task(query.complete(prompt(f"{n}"))) for n in range(2)]
    await eventually(lambda: doomed.instance.engine.running == 2)
    await fleet.start("spare", slots=8)
    await doomed.stop()
    completions = await asyncio.gather(*running)
    assert {(c.instance, c.attempt) for c in completions} == {("spare", 2)}
    assert fleet.state("doomed") in ("suspect", "dead")
    await query.end("answered")
    assert fleet.idle()


async def test_a_request_moves_when_the_engine_behind_the_server_dies(fleet, queue, prompt):
    await fleet.start("broken", fault="error")
    await fleet.start("spare", SLOW, slots=8)
    query = await queue.query(slo_s=60)
    completion = await query.complete(prompt())
    assert completion.instance == "spare"
    await query.end("answered")


async def test_a_prompt_that_is_at_fault_is_not_moved(fleet, queue, prompt):
    await fleet.start("m", max_model_len=64)
    await fleet.start("n", max_model_len=64)
    query = await queue.query(slo_s=30)
    with pytest.raises(PromptRejected):
        await query.complete(prompt("word " * 500))
    assert fleet.counts() == {"failed": 1}
    assert fleet.idle()
    await query.end("failed", reason="too long")


async def test_a_prompt_too_long_for_one_instance_goes_to_a_larger_one(
    fleet, queue, prompt
) -> None:
    """Nobody had told the queue how much either holds: the instance that rejected it did."""
    await fleet.start("short", max_model_len=64)
    await fleet.start("long", SLOW)
    query = await queue.query(slo_s=30)
    completion = await query.complete(prompt("word " * 500))
    assert (completion.instance, completion.attempt) == ("long", 2)
    again = await query.complete(prompt("many " * 500))
    assert (again.instance, again.attempt) == ("long", 1), "it knows now"
    assert (await query.complete(prompt("hi"))).instance == "short"
    await query.end("answered")
    assert fleet.idle()


async def test_an_instance_that_refuses_our_key_costs_no_request(fleet, queue, prompt):
    locked = await fleet.start("locked", api_key="theirs")
    await fleet.start("open", SLOW)
    query = await queue.query(slo_s=30)
    completion = await query.complete(prompt())
    assert (completion.instance, completion.attempt) == ("open", 2)
    assert locked.instance.engine.running == 0
    await query.end("answered")
    assert fleet.idle()


async def test_a_hung_instance_does_not_hold_up_the_others(fleet, new_queue, prompt, eventually):
    queue = await new_queue(QueueOptions(shortest_timeout_s=3.0, timeout_factor=1.0))
    await fleet.start("hung", fault="hang", slots=1)
    query = await queue.query(slo_s=3600)
    stuck = asyncio.create_task(query.complete(prompt("stuck")))
    await eventually(lambda: fleet.occupied("hung") == 1)
    await fleet.start("well", slots=2)
    others = await asyncio.gather(*(query.complete(prompt(f"{n}")) for n in range(6)))
    assert not stuck.done(), "the others ended while one instance hung"
    assert {completion.instance for completion in others} == {"well"}
    moved = await asyncio.wait_for(stuck, timeout=30)
    assert (moved.instance, moved.attempt) == ("well", 2)
    await query.end("answered")
    assert fleet.idle()


async def test_with_no_instance_at_all_a_request_ends_with_that_reason(fleet, queue, prompt):
    query = await queue.query(slo_s=30)
    with pytest.raises(NoInstanceInTime, match="no instance is alive"):
        await asyncio.wait_for(query.complete(prompt()), timeout=30)
    await query.end("failed", reason="no instance")
    assert fleet.counts() == {"cancelled": 1}


async def test_far_past_its_deadline_a_request_gives_up(fleet, new_queue, prompt, eventually):
    queue = await new_queue(QueueOptions(overdue_patience_s=0.5, outage_patience_s=1.0))
    await fleet.start("hung", fault="hang")
    query = await queue.query(slo_s=0.1)
    first = asyncio.create_task(query.complete(prompt("first")))
    await eventually(lambda: fleet.occupied("hung") == 1)
    with pytest.raises(NoInstanceInTime, match="past its deadline"):
        await asyncio.wait_for(query.complete(prompt("second")), timeout=30)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await query.end("failed", reason="too late")


async def test_what_comes_late_already_may_wait_as_long_as_what_becomes_late(
    fleet, new_queue, prompt, eventually
):
    queue = await new_queue(QueueOptions(overdue_patience_s=60.0, outage_patience_s=0.5))
    await fleet.start("m")
    query = await queue.query(slo_s=60, arrived_at=queue.store.now() - 86_400)
    running = await query.submit("ask", RequestSize(10, 5.0))
    waits = asyncio.create_task(query.complete(prompt("late")))
    await eventually(lambda: fleet.counts() == {"running": 1, "waiting": 1})
    await asyncio.sleep(2.0)  # it has looked around a few times
    await running.finish({})
    assert (await waits).instance == "m"
    await query.end("answered")


async def test_a_dead_instance_that_returns_is_used_again(fleet, queue, prompt, eventually):
    emulator = await fleet.start("m")
    query = await queue.query(slo_s=60)
    await emulator.stop()
    with pytest.raises((NoInstanceInTime, InstanceError)):
        await query.complete(prompt("while it is down"))
    await emulator.start()
    fleet.enter(emulator, 1)
    await eventually(lambda: fleet.state("m") == "alive", within_s=40)
    assert (await query.complete(prompt("when it is back"))).instance == "m"
    await query.end("answered")


# -- when callers leave -------------------------------------------------------------------------


async def test_cancelling_a_running_request_stops_the_engine_and_frees_the_slot(
    fleet, queue, prompt, eventually
):
    emulator = await fleet.start("m", Profile("endless", 0.01, 0.0, 0.1))
    query = await queue.query(slo_s=600)
    running = asyncio.create_task(query.complete(prompt("endless", tokens=4000)))
    await eventually(lambda: emulator.instance.engine.running == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: emulator.instance.engine.running == 0, within_s=10)
    await eventually(fleet.idle, within_s=10)
    assert fleet.counts() == {"cancelled": 1}
    await query.complete(prompt("the next one", tokens=1))
    await query.end("answered")


async def test_cancelling_a_waiting_request_takes_it_off_the_queue(
    fleet, queue, prompt, eventually
):
    await fleet.start("m", SLOW)
    query = await queue.query(slo_s=60)
    running = asyncio.create_task(query.complete(prompt("running")))
    await eventually(lambda: fleet.occupied("m") == 1)
    waiting = asyncio.create_task(query.complete(prompt("waiting")))
    await eventually(lambda: fleet.counts().get("waiting") == 1)
    waiting.cancel()
    await eventually(lambda: fleet.counts().get("cancelled") == 1)
    await running
    await query.end("answered")
    assert fleet.idle()


async def test_ending_a_query_cancels_what_it_still_has_open(fleet, queue, prompt, eventually):
    await fleet.start("m", SLOW)
    query = await queue.query(slo_s=60)
    open_ = [asyncio.create_task(query.complete(prompt(f"{n}"))) for n in range(3)]
    await eventually(lambda: sum(fleet.counts().values()) == 3)
    await query.end("cancelled", reason="nobody wants it")
    assert fleet.counts() == {"cancelled": 3}
    for task in open_:
        task.cancel()
    await asyncio.gather(*open_, return_exceptions=True)
    assert fleet.idle()


async def test_leaving_the_queue_tells_those_who_wait_and_frees_everything(
    store_url, fleet, prompt, eventually
):
    await fleet.start("m", fault="hang")
    async with SharedQueue(store_url) as leaving:
        query = await leaving.query(slo_s=60)
        tasks = [asyncio.create_task(query.complete(prompt(f"{n}"))) for n in range(2)]
        await eventually(lambda: fleet.counts() == {"running": 1, "waiting": 1})
    assert fleet.counts() == {"failed": 2}
    assert fleet.idle()
    [waited] = [t for t in tasks if t.done() and isinstance(t.exception(), QueueClosed)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert waited in tasks


# -- the caller's mistakes ----------------------------------------------------------------------


async def test_a_store_without_tables_is_refused(empty_store_url):
    with pytest.raises(StoreNotReady, match="hexprefect store upgrade"):
        async with SharedQueue(empty_store_url):
            pass


async def test_unknown_tenants_and_nonsense_slos_are_refused(fleet, queue):
    with pytest.raises(UnknownTenant):
        await queue.query(slo_s=10, tenant="nobody")
    with pytest.raises(CallerMistake):
        await queue.query(slo_s=-1)


async def test_an_instance_that_loses_every_request_is_given_up_after_a_few_moves(
    fleet, new_queue, prompt
):
    queue = await new_queue(replace(QueueOptions(), most_moves=2, outage_patience_s=3.0))
    for name in "abc":
        await fleet.start(name, fault="die")
    query = await queue.query(slo_s=60)
    with pytest.raises((InstanceError, NoInstanceInTime)):
        await asyncio.wait_for(query.complete(prompt()), timeout=60)
    await query.end("failed", reason="no instance holds")
    assert fleet.idle()
