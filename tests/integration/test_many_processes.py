"""Many processes, one queue, three servers of different speed.

The full size is 8 processes × 50 queries × 8 calls (3200 calls):

    HEXPREFECT_FULL=1 pytest tests/integration/test_many_processes.py -s

By default it is 4 processes × 8 queries × 4 calls, on servers of the same speed.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from hexprefect.completion import Message, Prompt
from hexprefect.instances.emulator import Emulator, EngineOptions
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, check_laws, tables
from hexprefect.store.fleet import enter_instance
from hexprefect.store.views import instance_views, request_counts

CHILD = Path(__file__).with_name("process_of_many.py")
FULL = bool(os.environ.get("HEXPREFECT_FULL"))
PROCESSES, QUERIES, CALLS = (8, 50, 8) if FULL else (4, 8, 4)

SERVERS = {
    # name: (seconds a call, slots); the rate is slots / seconds.
    "fast": (0.25, 4),
    "middle": (0.5, 2),
    "slow": (1.0, 1),
}
"""16, 4 and 1 calls a second: slow enough that this machine's own work is not what is measured."""


async def start_servers(stack: AsyncExitStack, store: Any) -> dict[str, Emulator]:
    servers = {}
    for name, (seconds, slots) in SERVERS.items():
        profile = Profile(name, fixed_s=0.0, input_s_per_token=0.0, output_s_per_token=seconds / 10)
        emulator = Emulator(profile, name=name, options=EngineOptions(max_num_seqs=slots))
        servers[name] = emulator
        endpoint = await stack.enter_async_context(emulator)
        spec = InstanceSpec(name, endpoint.url, profile, slots, model=endpoint.model, speaks="vllm")
        store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
    return servers


async def until(so: Callable[[], bool]) -> None:
    """Wait until something is so; the test's own timeout bounds it."""
    while not await asyncio.to_thread(so):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def run_processes(url: str) -> list[dict[str, list[float]]]:
    start_at = time.time() + 5.0 + PROCESSES
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(CHILD), url),
            *map(str, (number, QUERIES, CALLS, start_at)),
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    try:
        outputs = await asyncio.gather(*(process.communicate() for process in started))
        assert [process.returncode for process in started] == [0] * PROCESSES
        return [json.loads(output) for output, _ in outputs]
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
                await process.wait()


@pytest.mark.timeout(1500)
async def test_many_processes_share_three_unequal_servers(store_url, open_store, record_property):
    store = open_store(store_url)
    async with AsyncExitStack() as stack:
        await start_servers(stack, store)
        began = time.monotonic()
        results = await run_processes(store_url)
        wall_s = time.monotonic() - began
    total = PROCESSES * QUERIES * CALLS

    # All finish, and every law holds.
    assert {s: n for s, n in store.read(request_counts).items() if n} == {"finished": total}
    now = store.now()
    assert store.read(lambda connection: check_laws(connection, now=now)) == []
    for view in store.read(instance_views).values():
        assert (view.backlog_s, view.waiting, view.occupied) == (0, 0, 0)

    # The share of each server follows its speed: while work is queued everywhere a server takes
    # slots/seconds of the calls, as nobody has an empty slot. The tolerance is for the start and
    # the end, when not every slot is busy: at most a few calls of each of the seven slots. In the
    # small size the processes may be what is slow, and a slot stands empty until they come back.
    tolerance = 0.02 + (7 if FULL else 14) / total
    rows = store.read(
        lambda connection: connection.execute(select(tables.requests.c.instance)).all()
    )
    served = Counter(row.instance for row in rows)
    rates = {name: slots / seconds for name, (seconds, slots) in SERVERS.items()}
    shares = {name: served[name] / total for name in SERVERS}
    expected = {name: rate / sum(rates.values()) for name, rate in rates.items()}
    for name in SERVERS:
        assert shares[name] == pytest.approx(expected[name], abs=tolerance), (shares, expected)
    assert served["fast"] > served["middle"] > served["slow"]

    # Urgent queries overtake lax ones, that came at the same moment. In the small size most of the
    # time is the way through the processes, not through the queue: the test below holds the order.
    urgent = statistics.mean(s for result in results for s in result["urgent"])
    lax = statistics.mean(s for result in results for s in result["lax"])
    assert urgent < (0.8 if FULL else 1.0) * lax, (urgent, lax)

    figures = {
        "calls": total,
        "wall_s": round(wall_s, 1),
        "shares": {name: round(share, 3) for name, share in shares.items()},
        "by_speed": {name: round(share, 3) for name, share in expected.items()},
        "urgent_mean_s": round(urgent, 2),
        "lax_mean_s": round(lax, 2),
        "load": os.getloadavg()[0],
    }
    record_property("figures", figures)
    print(f"\n{store_url.split(':')[0]}: {json.dumps(figures)}")


@pytest.mark.timeout(120)
async def test_the_order_of_admission_on_one_slot_is_that_of_the_latest_start(
    store_url, open_store
):
    """Three processes put thirty requests before one slot; what comes in is what the key says."""
    store = open_store(store_url)
    async with AsyncExitStack() as stack:
        profile = Profile("one", fixed_s=0.0, input_s_per_token=0.0, output_s_per_token=0.002)
        emulator = Emulator(profile, name="one", options=EngineOptions(max_num_seqs=1))
        endpoint = await stack.enter_async_context(emulator)
        await emulator.set_fault("hang")
        spec = InstanceSpec("one", endpoint.url, profile, 1, model=endpoint.model, speaks="vllm")
        store.transact(lambda tx: enter_instance(tx, spec))
        options = QueueOptions(outage_patience_s=60.0)
        queues = [
            await stack.enter_async_context(SharedQueue(store_url, options=options))
            for _ in range(3)
        ]

        async def ask(number: int) -> None:
            # Budgets in no order: 7 and 30 have no common divisor.
            slo_s = 40.0 + 2.0 * (7 * number % 30)
            query = await queues[number % 3].query(slo_s=slo_s)
            prompt = Prompt("ask", (Message("user", f"{number}"),), max_output_tokens=10)
            await query.complete(prompt)
            await query.end("answered")

        blocker_query = await queues[0].query(slo_s=600)
        blocker = asyncio.create_task(
            blocker_query.complete(Prompt("ask", (Message("user", "blocker"),)))
        )
        await until(lambda: store.read(request_counts)["running"] == 1)
        asked = [asyncio.create_task(ask(number)) for number in range(30)]
        await until(lambda: store.read(request_counts)["waiting"] == 30)
        await emulator.set_fault(None)
        blocker.cancel()
        await asyncio.gather(*asked)
        await asyncio.gather(blocker, return_exceptions=True)
        await blocker_query.end("cancelled", reason="it was only in the way")

    finished = store.read(
        lambda connection: connection.execute(
            select(tables.requests.c.latest_start, tables.requests.c.admitted_at)
            .where(tables.requests.c.state == "finished")
            .order_by(tables.requests.c.admitted_at)
        ).all()
    )
    assert len(finished) == 30
    keys = [row.latest_start for row in finished]
    assert keys == sorted(keys)
    now = store.now()
    assert store.read(lambda connection: check_laws(connection, now=now)) == []
