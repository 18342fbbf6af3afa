"""What the scheduler itself costs, on both engines. Run with `pytest -m benchmark -s`.

Printed, with the machine's load: from submit to grant on an empty queue (median, p99), and whole
life cycles a second (submit, admit, finish) with 64 in flight. Ratios only are asserted: what a
machine takes depends on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import (
    Grant,
    InstanceSpec,
    NewQuery,
    NewRequest,
    Outcome,
    RegisteredQuery,
    Store,
    check_laws,
    leases,
)
from hexprefect.store.fleet import enter_instance
from hexprefect.store.queries import end_query, register_query
from hexprefect.store.transitions import finish
from hexprefect.store.views import request_counts

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

IN_FLIGHT = 64
LIFE_CYCLES = int(os.environ.get("HEXPREFECT_BENCHMARK_REQUESTS", "1000"))
PROBES = 200
RESULT = {"text": "SELECT count(*) FROM singer"}


@dataclass
class Bench:
    """A process that submits, waits for the grant, and finishes; no server is called."""

    store: Store
    query: RegisteredQuery
    waiting: dict[str, asyncio.Future[Grant]] = field(default_factory=dict)
    number: int = 0

    def granted(self, loop: asyncio.AbstractEventLoop, grants: Sequence[Grant]) -> None:
        loop.call_soon_threadsafe(self._resolve, tuple(grants))

    def _resolve(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            waiting = self.waiting.pop(grant.request_id, None)
            if waiting is not None:
                waiting.set_result(grant)

    async def begin(self) -> Grant:
        self.number += 1
        request = NewRequest(
            id=f"r{self.number}",
            query_id=self.query.id,
            stage="candidate_generation",
            size=RequestSize(1200, 60.0, (("static", 300), ("schema", 700))),
            deadline=self.query.deadline,
            database="shop",
        )
        granted = self.waiting[request.id] = asyncio.get_running_loop().create_future()
        await self.store.submit(request)
        return await granted

    async def end(self, grant: Grant) -> None:
        outcome = Outcome(RESULT, input_tokens=1200, output_tokens=60, cached_tokens=900)
        await self.store.run(
            lambda tx: finish(
                tx,
                request_id=grant.request_id,
                attempt=grant.attempt,
                outcome=outcome,
                database="shop",
            ),
            about=grant.request_id,
        )


@pytest.fixture
async def bench(store_url: str, open_store: Callable[..., Store]) -> AsyncIterator[Bench]:
    """Three unequal instances with eight slots each."""
    store = open_store(store_url)
    await store.run(lambda tx: leases.join(tx, lease_s=3600))
    for name, factor in (("a100", 1.0), ("a6000", 2.5), ("l40s", 3.0)):
        profile = Profile(name, 0.05 * factor, 1e-4 * factor, 1e-2 * factor, kv_tokens=100_000)
        spec = InstanceSpec(name, f"http://{name}", profile, slots=8)
        await store.run(lambda tx, spec=spec: enter_instance(tx, spec))
    new = NewQuery("q", "default", "shop", 3600.0, store.now())
    query = await store.run(lambda tx: register_query(tx, new))
    bench = Bench(store, query)
    loop = asyncio.get_running_loop()
    store.on_granted = lambda grants: bench.granted(loop, grants)
    yield bench
    await store.run(lambda tx: end_query(tx, query.id, state="answered"))
    now = store.now()
    assert store.read(lambda connection: check_laws(connection, now=now)) == []


def report(store: Store, **figures: float) -> None:
    engine = store.engine.dialect.name
    rounded = {name: round(figure, 2) for name, figure in figures.items()}
    print(f"\n{engine}: {json.dumps({**rounded, 'load': round(os.getloadavg()[0], 1)})}")


async def test_from_submit_to_grant_on_an_empty_queue(bench: Bench) -> None:
    took_ms: list[float] = []
    for probe in range(PROBES + 20):
        began = time.perf_counter()
        grant = await bench.begin()
        if probe >= 20:  # the first ones compile the statements
            took_ms.append(1000 * (time.perf_counter() - began))
        await bench.end(grant)
    p99 = statistics.quantiles(took_ms, n=100)[98]
    report(bench.store, submit_to_grant_ms_p50=statistics.median(took_ms), p99=p99)
    assert bench.store.read(request_counts)["finished"] == PROBES + 20


async def test_life_cycles_a_second(bench: Bench) -> None:
    async def life_cycle(gate: asyncio.Semaphore) -> None:
        async with gate:
            await bench.end(await bench.begin())

    async def rate(count: int, in_flight: int) -> float:
        gate = asyncio.Semaphore(in_flight)
        began = time.perf_counter()
        await asyncio.gather(*(life_cycle(gate) for _ in range(count)))
        return count / (time.perf_counter() - began)

    await rate(100, IN_FLIGHT)  # the first ones compile the statements
    alone = await rate(LIFE_CYCLES // 5, 1)
    together = await rate(LIFE_CYCLES, IN_FLIGHT)
    report(bench.store, alone_per_s=alone, in_flight_64_per_s=together)
    # What group commit is for: one lock, one fsync and one round trip are shared by many.
    assert together > 1.2 * alone
