"""The simulator and the emulator tell the same story of the same workload.

They are two models of one engine, written apart: the simulator's is made for millions of requests
and for prefixes that are named, the emulator's for a server that a client cannot tell from vLLM,
with blocks and hashes. Here both serve the same requests on a clock of their own, which is exact
and needs no waiting. The slow test sends a whole workload over HTTP to an emulated fleet, through
the queue and the store, and simulates the same.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.emulator import Engine as EmulatedEngine
from hexprefect.instances.emulator import EngineOptions as EmulatedOptions
from hexprefect.instances.emulator import Sequence as EmulatedSequence
from hexprefect.instances.emulator.blocks import BLOCK_TOKENS
from hexprefect.instances.profiles import default_profile
from hexprefect.queue import QueueOptions, SharedQueue
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.simulator.arrivals import moments, parse_arrivals
from hexprefect.simulator.cluster import Cluster, Instance, capacity
from hexprefect.simulator.engine import Engine as SimulatedEngine
from hexprefect.simulator.engine_values import EngineJob, EngineOptions
from hexprefect.simulator.generator import Generator
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.policies import named_policy
from hexprefect.simulator.simulation import Simulation
from hexprefect.simulator.workload import Call, Query
from hexprefect.store import InstanceSpec, Store, check_laws, upgrade
from hexprefect.store.fleet import enter_instance

Prefix = tuple[tuple[str, int], ...]

# -- the two engines, on a clock of their own ------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """A request that comes to an engine at a moment."""

    at: float
    input_tokens: int
    output_tokens: int
    prefix: Prefix = ()
    priority: int = 0


def arrivals(
    number: int, rate: float, *, prefixes: bool = False, longest: int = 3500
) -> list[Arrival]:
    """Poisson arrivals of prompts and answers as a Text-to-SQL workload has them."""
    draw = random.Random(f"{number} {rate} {prefixes}")
    at, drawn = 0.0, []
    for _ in range(number):
        at += draw.expovariate(rate)
        prefix: Prefix = ()
        if prefixes:
            text, schema = draw.randrange(3), draw.randrange(6)
            # Named by all that comes before it, as the hash of a block is.
            prefix = ((f"text {text}", 128), (f"text {text} schema {schema}", 320))
        drawn.append(
            Arrival(
                at,
                draw.randrange(500, longest),
                1 + int(draw.lognormvariate(3.8, 1.0)),
                prefix,
                draw.randrange(5),
            )
        )
    return drawn


def emulated(
    profile: Profile,
    requests: Sequence[Arrival],
    *,
    slots: int = 256,
    priority: bool = False,
    own_blocks: bool = True,
) -> list[float]:
    """How long the emulator's engine takes for each.

    Args:
        own_blocks: whether what a prompt shares with no other is kept in the prefix cache, too.
    """
    engine = EmulatedEngine(
        profile,
        kv_tokens=profile.kv_tokens or 97_000,
        options=EmulatedOptions(
            max_num_seqs=slots, scheduling_policy="priority" if priority else "fcfs"
        ),
    )
    sequences = []
    for number, request in enumerate(requests):
        engine.advance(request.at)
        hashes = block_hashes(number, request)
        sequence = EmulatedSequence(
            request.input_tokens,
            request.output_tokens,
            priority=request.priority,
            block_hashes=hashes if own_blocks else hashes[: shared_tokens(request) // BLOCK_TOKENS],
        )
        engine.submit(sequence, request.at)
        sequences.append(sequence)
    while (due := engine.next_at) is not None:
        engine.advance(due)
    return [(sequence.finished_at or math.inf) - sequence.arrived_at for sequence in sequences]


def shared_tokens(request: Arrival) -> int:
    """Of its prompt, what others may begin with, too."""
    return sum(tokens for _, tokens in request.prefix)


def block_hashes(number: int, request: Arrival) -> tuple[int, ...]:
    """As of a prompt that begins with the text of its prefix and goes on with its own."""
    hashes: list[int] = []
    for block in range(request.input_tokens // BLOCK_TOKENS):
        end, name = 0, f"own {number}"
        for key, tokens in request.prefix:
            end += tokens
            if (block + 1) * BLOCK_TOKENS <= end:
                name = key
                break
        hashes.append(hash((name, block)))
    return tuple(hashes)


def simulated(
    profile: Profile, requests: Sequence[Arrival], *, slots: int = 256, priority: bool = False
) -> list[float]:
    """How long the simulator's engine takes for each."""
    engine = SimulatedEngine(
        profile, EngineOptions(slots=slots, scheduling="priority" if priority else "fcfs")
    )
    jobs: dict[int, int] = {}
    waiting = list(enumerate(requests))[::-1]
    lasted = [math.inf] * len(requests)
    while waiting or engine.next_at < math.inf:
        if waiting and waiting[-1][1].at <= engine.next_at:
            number, request = waiting.pop()
            job = EngineJob(request.input_tokens, request.output_tokens, request.prefix)
            job.priority = (request.priority, 0.0)
            jobs[id(job)] = number
            engine.submit(job, request.at)
        else:
            now = engine.next_at
            for job in engine.advance():
                number = jobs.pop(id(job))
                lasted[number] = now - requests[number].at
    return lasted


def assert_alike(one: Sequence[float], other: Sequence[float], *, within: float) -> None:
    """Means and 95th percentiles agree, and so do most single requests."""
    assert np.mean(one) == pytest.approx(np.mean(other), rel=within)
    assert np.percentile(one, 95) == pytest.approx(np.percentile(other, 95), rel=within)
    apart = np.abs(np.subtract(one, other)) / other
    assert np.median(apart) < within


LOADS = (0.1, 0.6, 1.0, 3.0)
"""Requests a second: from an instance that is idle mostly to one that is hopelessly late."""


@pytest.mark.parametrize("rate", LOADS)
@pytest.mark.parametrize("hardware", ["a100", "h100", "l40s", "a6000"])
def test_both_engines_take_as_long_for_the_same_requests(hardware: str, rate: float) -> None:
    profile, requests = default_profile(hardware), arrivals(500, rate)
    assert_alike(simulated(profile, requests), emulated(profile, requests), within=0.03)


@pytest.mark.parametrize("rate", LOADS)
@pytest.mark.parametrize("hardware", ["a100", "l40s", "a6000"])
def test_both_engines_find_the_same_prefixes(hardware: str, rate: float) -> None:
    """Named segments here, hashed blocks there."""
    profile, requests = default_profile(hardware), arrivals(500, rate, prefixes=True)
    with_cache = simulated(profile, requests)
    assert_alike(with_cache, emulated(profile, requests), within=0.04)
    without = simulated(profile, [replace(request, prefix=()) for request in requests])
    assert np.mean(with_cache) < 0.97 * np.mean(without)


@pytest.mark.parametrize("priority", [False, True], ids=["fcfs", "priority"])
@pytest.mark.parametrize(("slots", "within"), [(4, 0.1), (16, 0.04)])
def test_both_engines_queue_alike_when_their_slots_are_taken(
    slots: int, within: float, priority: bool
) -> None:
    """Near saturation a queue multiplies the step by which the two place a first token apart."""
    profile, requests = default_profile("a100"), arrivals(500, 1.0)
    assert_alike(
        simulated(profile, requests, slots=slots, priority=priority),
        emulated(profile, requests, slots=slots, priority=priority),
        within=within,
    )


def test_both_engines_preempt_alike_when_memory_runs_out() -> None:
    """Where a preempted prompt is computed again in full, as the simulator always has it; what of
    it is still in the cache costs the emulator nothing."""
    profile = replace(default_profile("l40s"), kv_tokens=12_000)
    requests = [replace(r, output_tokens=4 * r.output_tokens) for r in arrivals(500, 0.4)]
    in_full = emulated(profile, requests, own_blocks=False)
    assert_alike(simulated(profile, requests), in_full, within=0.03)
    assert np.mean(emulated(profile, requests)) < np.mean(in_full)


@pytest.mark.parametrize("hardware", ["a100", "h100", "l40s", "a6000"])
def test_alone_a_request_takes_what_the_profile_says_in_both(hardware: str) -> None:
    profile = default_profile(hardware)
    requests = [Arrival(1000.0 * n, 300 + 700 * n, 1 + 40 * n) for n in range(8)]
    expected = [
        profile.fixed_s
        + profile.input_s_per_token * request.input_tokens
        + profile.output_s_per_token * request.output_tokens
        for request in requests
    ]
    assert simulated(profile, requests) == pytest.approx(expected)
    assert emulated(profile, requests) == pytest.approx(expected)


# -- a whole workload: simulated, and live over HTTP -----------------------------------------------

FLEET = {"a100": 2, "a6000": 1, "l40s": 1}
DEPTH = 16
TIME_SCALE = 3.0
"""Times faster than life. Each request costs a quiet machine some twenty milliseconds: this many
times as much of the emulated time, of which it takes seconds."""
LOAD = 0.35
"""Of the fleet's capacity: requests wait at times, but one that comes a moment later does not
change the fate of all that follow."""
QUERIES = 240
SLO_SCALE = 5.0
AIM = 0.10


def workload(number: int) -> tuple[Query, ...]:
    """Generated queries; each prefix segment is named by all that comes before it, too."""

    def chained(call: Call) -> Call:
        keys = [key for key, _ in call.prefix]
        prefix = tuple(
            ("/".join(keys[: place + 1]), tokens) for place, (_, tokens) in enumerate(call.prefix)
        )
        return replace(call, prefix=prefix, output_tokens=max(1, call.output_tokens))

    # So few databases that the store remembers every prefix that an instance holds.
    generator = Generator(family="spider", shape="ours", layout="schema", databases=8)
    queries = generator.some(number)
    return tuple(
        Query(calls=tuple(map(chained, query.calls)), database=query.database) for query in queries
    )


def fleet() -> Cluster:
    """The instances of both runs."""
    return Cluster(
        "fleet",
        tuple(
            Instance(f"{hardware}-{n}", default_profile(hardware), EngineOptions(slots=DEPTH))
            for hardware, count in sorted(FLEET.items())
            for n in range(count)
        ),
    )


def expected_tokens(queries: Sequence[Query]) -> dict[str, float]:
    """What both expect of a stage before any of it has finished."""
    lengths: dict[str, list[int]] = {}
    for query in queries:
        for call in query.calls:
            lengths.setdefault(call.stage, []).append(call.output_tokens)
    return {stage: float(np.mean(found)) for stage, found in lengths.items()}


def simulated_latencies(timed: Sequence[tuple[float, Query]], cluster: Cluster) -> list[float]:
    """Seconds that each query takes in the simulator, under the policy of the running system."""
    knowledge = Knowledge(cluster.profiles, expected_tokens([query for _, query in timed]))
    simulation = Simulation(
        cluster, named_policy("hexprefect"), slo_scale=SLO_SCALE, knowledge=knowledge, check_laws=True
    )
    return list(simulation.run(timed).latency_s)


@asynccontextmanager
async def emulated_fleet() -> AsyncIterator[dict[str, str]]:
    """A fleet in a process of its own: instance name → URL."""
    cluster = ",".join(f"{hardware}:{count}" for hardware, count in FLEET.items())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hexprefect.instances.emulator", "--cluster", cluster, "--with-parent"),
        *("--time-scale", str(TIME_SCALE), "--max-num-seqs", str(DEPTH)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        urls: dict[str, str] = {}
        async with asyncio.timeout(60.0):
            while len(urls) < sum(FLEET.values()):
                told = json.loads(await process.stdout.readline())
                urls[told["name"]] = told["url"]
        yield urls
    finally:
        process.terminate()
        await process.wait()


def prompt_of(call: Call, own: str) -> Prompt:
    """A prompt of exactly the call's length, which shares its text as far as its prefix says."""
    beginning, end = "<|user|>", "<|end|><|assistant|>"
    text, upto = beginning, 0
    for key, tokens in call.prefix:
        upto += tokens
        text += _filled(key, round(upto * 3.2) - len(text))
    text += _filled(own, math.floor(call.input_tokens * 3.2) - len(text) - len(end))
    return Prompt(
        stage=call.stage,
        messages=(Message("user", text.removeprefix(beginning)),),
        max_output_tokens=call.output_tokens,
    )


def _filled(word: str, characters: int) -> str:
    return (f"{word} " * (characters // (len(word) + 1) + 1))[: max(0, characters)]


async def live_latencies(
    url: str, timed: Sequence[tuple[float, Query]], cluster: Cluster, urls: Mapping[str, str]
) -> list[float]:
    """Emulated seconds that each query takes through the queue, in the order of `timed`."""
    expected = expected_tokens([query for _, query in timed])
    knowledge = Knowledge(cluster.profiles)
    latencies = [math.inf] * len(timed)
    async with SharedQueue(url, options=QueueOptions(shortest_timeout_s=600.0)) as queue:
        loop = asyncio.get_running_loop()
        begun = loop.time() + 1.0

        async def ask(number: int, at: float, asked: Query) -> None:
            due = begun + at / TIME_SCALE
            await asyncio.sleep(due - loop.time())
            slo_s = SLO_SCALE * knowledge.alone_seconds(asked) / TIME_SCALE
            query = await queue.query(slo_s=slo_s, database=asked.database)
            ids: list[asyncio.Future[str]] = [loop.create_future() for _ in asked.calls]

            async def run(index: int, call: Call) -> None:
                needs = [await ids[need] for need in call.needs]
                request = await query.submit(
                    call.stage,
                    RequestSize(call.input_tokens, expected[call.stage], call.prefix),
                    branch=str(index),
                    needs=needs,
                )
                completion = await request.complete(prompt_of(call, f"{number} {index}"))
                assert completion.input_tokens == call.input_tokens
                assert completion.output_tokens == call.output_tokens
                await request.finish({"text": completion.text[:20]})
                ids[index].set_result(request.id)

            async with asyncio.TaskGroup() as group:
                for index, call in enumerate(asked.calls):
                    group.create_task(run(index, call))
            latencies[number] = (loop.time() - due) * TIME_SCALE
            await query.end("answered")

        async with asyncio.TaskGroup() as group:
            for number, (at, asked) in enumerate(timed):
                group.create_task(ask(number, at, asked))
    return latencies


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_simulated_and_the_emulated_fleet_answer_as_fast(
    tmp_path: Path, open_store: Callable[..., Store], capsys: pytest.CaptureFixture[str]
) -> None:
    queries, cluster = workload(QUERIES), fleet()
    assert sum(len(query.calls) for query in queries) >= 500
    rate = LOAD * capacity(queries, cluster)
    timed = list(zip(moments(parse_arrivals("poisson"), rate, 5), queries, strict=False))
    simulated_s = simulated_latencies(timed, cluster)
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    store = open_store(url)
    async with emulated_fleet() as urls:
        for instance in cluster.instances:
            spec = InstanceSpec(
                name=instance.name,
                url=urls[instance.name],
                profile=faster(instance.profile, TIME_SCALE),
                slots=DEPTH,
                model="emulated",
                speaks="vllm",
            )
            store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
        live_s = await live_latencies(url, timed, cluster, urls)
    with capsys.disabled():
        for name, found in (("simulated", simulated_s), ("emulated", live_s)):
            mean_s, p95_s = np.mean(found), np.percentile(found, 95)
            print(f"\n{name}: mean {mean_s:.2f} s, P95 {p95_s:.2f} s", end="")
    assert np.mean(simulated_s) == pytest.approx(np.mean(live_s), rel=AIM)
    assert np.percentile(simulated_s, 95) == pytest.approx(np.percentile(live_s, 95), rel=AIM)
    now = store.now()
    assert store.read(lambda connection: check_laws(connection, now=now)) == []


def faster(profile: Profile, factor: float) -> Profile:
    """The profile of an instance that lives so many times faster."""
    return replace(
        profile,
        fixed_s=profile.fixed_s / factor,
        input_s_per_token=profile.input_s_per_token / factor,
        output_s_per_token=profile.output_s_per_token / factor,
    )
