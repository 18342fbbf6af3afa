"""How fast the simulator is, and where its time goes. Prints; asserts ratios only.

Run with `pytest -s tests/benchmarks/test_simulator_speed.py`. Times are processor seconds of one
core. `loop` is the time of an empty loop of a million turns on the same core: it says how fast that
core is at the moment, so that figures of different machines, or of a busy one, can be compared.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, islice

import pytest

from hexprefect.simulator import (
    Experiment,
    Generator,
    Query,
    Simulation,
    capacity,
    named_policy,
    parse_cluster,
    tune,
)
from hexprefect.simulator.appointing import COMPILED
from hexprefect.simulator.arrivals import moments, parse_arrivals

pytestmark = pytest.mark.benchmark

CLUSTER = parse_cluster("heterogeneous-1")
BIRD = Generator(family="bird").some(90)


def loop_s() -> float:
    """Processor seconds of an empty loop of a million turns."""
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - began


def experiment(policy: str, number: int, load: float = 0.75) -> Experiment:
    return Experiment(
        trace="bird",
        queries=BIRD,
        cluster=CLUSTER,
        policy=named_policy(policy),
        rate=load * capacity(BIRD, CLUSTER),
        number=number,
    )


@pytest.mark.parametrize("load", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("policy", ["rr-fcfs", "hexgen", "hexprefect"])
def test_requests_a_second_of_one_core(policy: str, load: float) -> None:
    run = experiment(policy, 500, load)
    best = sys.float_info.max
    for _ in range(3):
        began = time.process_time()
        outcome = run.run()
        best = min(best, time.process_time() - began)
    unit = loop_s()
    print(
        f"\n{'compiled ' * COMPILED}{policy} at load {load:g}: "
        f"{outcome.requests / best:,.0f} requests a second; "
        f"{1e6 * best / outcome.requests:.1f} µs each; loop {1e3 * unit:.1f} ms"
    )
    # A request costs what 2,500 turns of an empty loop do, at most: the ratio does not depend on
    # how fast the machine is.
    assert best / outcome.requests < 2_500 * unit / 1e6


def test_tuning_twenty_one_values_of_alpha_over_three_seeds_of_a_hundred_queries() -> None:
    began = time.process_time()
    tuning = tune(experiment("hexprefect", 100), seeds=(0, 1, 2))
    took = time.process_time() - began
    print(
        f"\n{len(tuning.points)} points × 3 seeds × 100 queries: {took:.1f} s; "
        f"loop {1e3 * loop_s():.1f} ms"
    )
    assert len(tuning.points) >= 21


def arriving(number: int) -> Iterator[tuple[float, Query]]:
    at = moments(parse_arrivals("poisson"), 0.6 * capacity(BIRD, CLUSTER), 0)
    return zip(islice(at, number), cycle(BIRD), strict=False)


def test_memory_does_not_grow_with_the_length_of_a_run() -> None:
    def peak(number: int) -> int:
        tracemalloc.start()
        try:
            Simulation(CLUSTER, named_policy("hexprefect")).run(arriving(number))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(100), peak(2_000)
    per_query = (long - short) / 1_900
    print(f"\npeak {short / 1e6:.2f} MB at 100 queries, {long / 1e6:.2f} MB at 2,000")
    # Four doubles a query are kept, with the room that growing arrays reserve; a query has about
    # 19 requests of several hundred bytes each.
    assert per_query < 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_of_a_million_requests() -> None:
    """Resident memory, as the system counts it: 100,000 requests first, then ten times as many."""

    def peak_bytes(requests: int) -> int:
        outcome = Simulation(CLUSTER, named_policy("hexprefect")).run(arriving(requests // 19))
        assert outcome.requests > 0.9 * requests
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    short, long = peak_bytes(100_000), peak_bytes(1_000_000)
    print(f"\npeak {short / 1e6:.0f} MB at 100,000 requests, {long / 1e6:.0f} MB at 1,000,000")
    # 32 bytes a query are kept, and once more while an array grows.
    assert long - short < 20e6


@pytest.mark.skipif(COMPILED, reason="a profiler does not see into compiled modules")
def test_where_the_time_goes() -> None:
    run = experiment("hexprefect", 200)
    # Processor seconds: the wall clock would count what other processes do.
    profile = cProfile.Profile(time.process_time)
    outcome = profile.runcall(run.run)
    stats = pstats.Stats(profile, stream=sys.stdout)
    rooms: dict[str, float] = {}
    for (path, _, _), (_, _, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        name = (
            path.rpartition("hexprefect/")[2].removesuffix(".py")
            if "hexprefect/" in path
            else ("built-in functions")
        )
        rooms[name] = rooms.get(name, 0.0) + own
    whole = sum(rooms.values())
    print()
    for name, own in sorted(rooms.items(), key=lambda item: -item[1])[:12]:
        print(f"{100 * own / whole:5.1f} %  {name}")
    functions = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    for (path, line, name), (calls, _, own, _, _) in functions[:16]:
        place = f"{path.rpartition('hexprefect/')[2]}:{line}"
        print(
            f"{100 * own / whole:5.1f} %  {calls / outcome.requests:5.2f} a request  {name} {place}"
        )
    assert rooms["simulator/engine"] < 0.6 * whole
