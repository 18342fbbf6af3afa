"""Law 6 under fire: processes are killed at random moments and started again; nothing is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from hexprefect.instances.emulator import Emulator, EngineOptions
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, check_laws, leases, tables
from hexprefect.store.fleet import enter_instance, set_instance_state
from hexprefect.store.views import instance_views

CHILD = Path(__file__).with_name("restarted_process.py")
PROCESSES, QUERIES, CALLS, KILLS = 3, 4, 4, 6


async def start(url: str, number: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), url), *map(str, (number, QUERIES, CALLS))
    )


@pytest.mark.timeout(280)
async def test_nothing_is_lost_whoever_is_killed_whenever(store_url, open_store):
    chance = random.Random(7)
    store = open_store(store_url)
    async with AsyncExitStack() as stack:
        for name, seconds in (("fast", 0.2), ("slow", 0.6)):
            profile = Profile(name, 0.0, 0.0, output_s_per_token=seconds / 10)
            emulator = Emulator(profile, name=name, options=EngineOptions(max_num_seqs=2))
            endpoint = await stack.enter_async_context(emulator)
            spec = InstanceSpec(name, endpoint.url, profile, 2, model=endpoint.model, speaks="vllm")
            store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
        running = {number: await start(store_url, number) for number in range(PROCESSES)}
        try:
            killed = 0
            while killed < KILLS:
                await asyncio.sleep(chance.uniform(0.5, 3.0))
                number = chance.choice(sorted(running))
                if running[number].returncode is None:
                    running[number].send_signal(signal.SIGKILL)
                    killed += 1
                elif all(process.returncode == 0 for process in running.values()):
                    break  # they were quicker than the killer
                await running[number].wait()
                running[number] = await start(store_url, number)
            async with asyncio.timeout(180):
                codes = [await process.wait() for process in running.values()]
        finally:
            for process in running.values():
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    assert codes == [0] * PROCESSES
    assert killed > 0

    # Those killed last are found dead by whoever looks: here, the test.
    until = time.monotonic() + 30
    while store.read(lambda c: c.execute(select(tables.processes.c.id)).all()):
        store.transact(leases.expire)
        assert time.monotonic() < until
        await asyncio.sleep(0.2)

    # Every query was answered, by requests each of which has one result; a lost attempt is told.
    states = store.read(lambda c: c.execute(select(tables.queries.c.state)).scalars().all())
    assert Counter(states) == {"answered": PROCESSES * QUERIES}
    requests = store.read(lambda c: c.execute(select(tables.requests)).all())
    assert Counter(row.state for row in requests) == {"finished": PROCESSES * QUERIES * CALLS}
    assert all(row.result is not None for row in requests)
    outcomes = store.read(
        lambda c: c.execute(select(tables.attempts.c.request_id, tables.attempts.c.outcome)).all()
    )
    finished = Counter(row.request_id for row in outcomes if row.outcome == "finished")
    assert set(finished.values()) == {1}, "a finished request ran again"
    now = store.now()
    assert store.read(lambda connection: check_laws(connection, now=now)) == []
    for view in store.read(instance_views).values():
        assert (view.backlog_s, view.waiting, view.occupied) == (0, 0, 0)
        store.transact(lambda tx, view=view: set_instance_state(tx, view.spec.name, "draining"))
