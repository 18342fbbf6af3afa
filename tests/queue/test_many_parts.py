"""Several processes, one queue: they hear of each other, outlive each other, and change nothing
late."""

from __future__ import annotations

import asyncio
import signal
import time

from hexprefect.scheduling import Profile

SLOW = Profile("slow", fixed_s=0.5, input_s_per_token=0.0, output_s_per_token=0.001)


async def test_a_process_hears_that_another_has_admitted_its_request(
    fleet, new_queue, prompt, eventually
):
    await fleet.start("m")
    one, other = await new_queue(), await new_queue()
    ours, theirs = await one.query(slo_s=60), await other.query(slo_s=60)
    # They take turns on the only slot: each is admitted by the other's finish, time and again.
    began = time.monotonic()
    completions = await asyncio.gather(
        *(query.complete(prompt(f"{n}")) for n in range(10) for query in (ours, theirs))
    )
    assert {completion.instance for completion in completions} == {"m"}
    assert time.monotonic() - began < 15, "somebody did not hear and was found by chance"
    await ours.end("answered")
    await theirs.end("answered")
    assert fleet.idle()


async def test_a_process_in_another_process_hears_it_too(fleet, queue, start_child, prompt):
    await fleet.start("m", slots=2)
    children = [await start_child(requests=6, lease_s=20.0) for _ in range(2)]
    query = await queue.query(slo_s=60)
    await asyncio.gather(*(query.complete(prompt(f"{n}")) for n in range(6)))
    for child in children:
        await child.says("ended")
        assert await child.process.wait() == 0
    await query.end("answered")
    assert fleet.counts() == {"finished": 18}
    assert fleet.idle()


async def test_what_a_killed_process_held_is_reported_and_its_slots_are_free(
    fleet, queue, start_child, prompt, eventually
):
    emulator = await fleet.start("m", fault="hang")
    child = await start_child(requests=2)
    await eventually(lambda: fleet.counts() == {"running": 1, "waiting": 1})
    query = await queue.query(slo_s=60)
    mine = asyncio.create_task(query.complete(prompt()))
    await eventually(lambda: fleet.counts() == {"running": 1, "waiting": 2})
    child.send(signal.SIGKILL)
    await child.process.wait()
    await emulator.set_fault(None)
    completion = await asyncio.wait_for(mine, timeout=30)
    assert completion.instance == "m"
    assert fleet.counts() == {"failed": 2, "finished": 1}
    reasons = queue.store.read(
        lambda connection: (
            connection.exec_driver_sql("SELECT DISTINCT error FROM requests WHERE state = 'failed'")
            .scalars()
            .all()
        )
    )
    assert reasons == ["the process that ran it died"]
    await query.end("answered")
    assert fleet.idle()


async def test_a_process_that_sleeps_past_its_lease_changes_nothing_late(
    fleet, queue, start_child, eventually
):
    """It is stopped while its request runs, found dead, and goes on when all is decided."""
    emulator = await fleet.start("m", Profile("slow", 3.0, 0.0, 0.001))
    child = await start_child(requests=1, lease_s=1.5)
    await eventually(lambda: emulator.instance.engine.running == 1)
    child.send(signal.SIGSTOP)
    try:
        await eventually(lambda: fleet.counts() == {"failed": 1}, within_s=30)
        first_attempt = _rows(queue)
    finally:
        child.send(signal.SIGCONT)
    # Its answer came late: the attempt stays lost, and the process takes its query up again.
    completed = await child.says("completed")
    assert completed == "0 m 2"
    await child.says("ended")
    assert await child.process.wait() == 0
    attempts = _rows(queue)
    assert attempts[: len(first_attempt)] == first_attempt
    assert [row[1:] for row in attempts] == [(1, "lost"), (2, "finished")]
    assert fleet.counts() == {"finished": 1}
    assert fleet.idle()


def _rows(queue):
    return queue.store.read(
        lambda connection: [
            tuple(row)
            for row in connection.exec_driver_sql(
                "SELECT id, number, outcome FROM attempts ORDER BY id"
            )
        ]
    )


async def test_a_process_whose_query_was_taken_up_elsewhere_is_refused(
    fleet, queue, start_child, prompt, eventually
):
    emulator = await fleet.start("m", Profile("slow", 3.0, 0.0, 0.001))
    child = await start_child(requests=1, lease_s=1.5)
    query_id = await child.says("query")
    await eventually(lambda: emulator.instance.engine.running == 1)
    child.send(signal.SIGSTOP)
    try:
        await eventually(lambda: fleet.counts() == {"failed": 1}, within_s=30)
        query = await queue.query(id=query_id, slo_s=60)
        completion = await query.complete(prompt("Question 0"))
        await query.end("answered", sql="SELECT 1")
    finally:
        child.send(signal.SIGCONT)
    assert completion.attempt == 2, "it is the same request"
    assert await child.says("refused") == "0 QueryEnded"
    await child.says("ended")
    assert await child.process.wait() == 0
    [(state, sql)] = queue.store.read(
        lambda connection: connection.exec_driver_sql("SELECT state, sql FROM queries").all()
    )
    assert (state, sql) == ("answered", "SELECT 1")
    assert fleet.counts() == {"finished": 1}
