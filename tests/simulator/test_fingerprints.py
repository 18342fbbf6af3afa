"""Law 9, over time: what is made faster still gives the results that were recorded, bit for bit.

Each policy here names a way to decide, an order, a backlog, a kind of cost; none is a default that
may be chosen anew. Figures are chosen so that no sum depends on how a platform adds or a library
draws: profiles are fractions of powers of two, arrivals and lengths come from `random.random`.

A change that is *meant* to alter results records them again, and says so:
`python tests/simulator/test_fingerprints.py` writes `fingerprints.json`.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from hexprefect.scheduling import Profile
from hexprefect.simulator import Call, EngineOptions, Policy, Query, Simulation
from hexprefect.simulator.cluster import Cluster, Instance

RECORD = Path(__file__).with_name("fingerprints.json")

STAGES = ("link", "write", "correct", "judge")

OURS = {
    "order": "laxity",
    "slowdown": 3.0,
    "backlog": "clock",
    "prefix_aware": True,
    "batch_aware": True,
    "counts_delay_caused": True,
    "engine_priority": True,
}

POLICIES = {
    name: Policy(name=name, summary="", **fields)  # type: ignore[arg-type]
    for name, fields in {
        "round-robin": {"dispatch": "round-robin", "order": "arrival", "reserves": False},
        "least-loaded": {"dispatch": "least-loaded", "order": "attained"},
        "power-of-two": {"dispatch": "power-of-two", "order": "arrival", "reserves": False},
        "shortest-wait": {"dispatch": "shortest-wait", "order": "deadline"},
        "urgency": {"order": "urgency"},
        "paper": {"dispatch": "paper", "order": "urgency"},
        "ever-growing": {"dispatch": "paper", "order": "urgency", "backlog": "ever-growing"},
        "laxity": {"order": "laxity", "alpha": 0.3},
        "deadline": {"order": "deadline", "depth": 3},
        "horizon": {
            "order": "horizon",
            "backlog": "occupancy",
            "batch_aware": True,
            "prefix_aware": True,
        },
        "remaining": {"order": "remaining", "ageing": 0.1, "slowdown": 2.0},
        "clock": OURS,
        "clock-fast": {**OURS, "alpha": 0.9},
        "clock-reappoints": {**OURS, "reappoints": True},
        "clock-suffers": {**OURS, "counts_delay_suffered": True},
        "clock-late": {**OURS, "late_penalty": 3.0, "stretch": 2.0},
        "late": {"order": "laxity", "late_penalty": 1000.0, "depth": 4},
        "prefix-only": {**OURS, "batch_aware": False, "backlog": "cost"},
    }.items()
}


def cluster(*, prefix_cache: bool) -> Cluster:
    options = EngineOptions(prefix_cache=prefix_cache, slots=24)
    step = 1 / 8192
    return Cluster(
        "four",
        tuple(
            Instance(
                f"{name}-{number}",
                Profile(name, 1 / 64, 2 * slow * step, 128 * slow * step, 1 / 512, kv_tokens),
                options,
            )
            for name, slow, kv_tokens, count in (("fast", 1, 24_000, 2), ("slow", 2, 9_000, 2))
            for number in range(count)
        ),
    )


def queries(seed: int) -> Iterator[Query]:
    rng = random.Random(f"fingerprints {seed}")

    def between(least: int, most: int) -> int:
        return least + int(rng.random() * (most - least + 1))

    while True:
        database = f"d{between(0, 5)}"
        calls: list[Call] = []
        for index in range(between(2, 14)):
            stage = STAGES[between(0, 3)]
            needs = {between(0, index - 1) for _ in range(between(0, 2))} if index else set()
            prefix: tuple[tuple[str, int], ...] = ((f"static:{stage}", 300),)
            if stage in ("write", "correct"):
                prefix += ((f"schema:{database}", 1_200),)
            tokens = sum(each for _, each in prefix) + between(50, 900)
            calls.append(Call(stage, tokens, between(0, 400), tuple(sorted(needs)), prefix))
        yield Query(tuple(calls), database=database)


def fingerprint(policy: Policy, *, prefix_cache: bool, gap_s: float) -> str:
    moments = random.Random("moments")
    now = 0.0
    arrivals = []
    for _, query in zip(range(70), queries(1), strict=False):
        now += 2 * gap_s * moments.random()
        arrivals.append((now, query))
    outcome = Simulation(cluster(prefix_cache=prefix_cache), policy, seed=5).run(arrivals)
    digest = hashlib.sha256()
    for figures in (outcome.arrived_at, outcome.latency_s, outcome.alone_s, outcome.slo_s):
        digest.update(struct.pack(f"<{len(figures)}d", *figures))
    digest.update(struct.pack("<dd", outcome.ended_at, outcome.longest_wait_s))
    digest.update(struct.pack("<qq", outcome.requests, outcome.preemptions))
    return digest.hexdigest()[:20]


def fingerprints(policy: Policy) -> dict[str, str]:
    """At half, full and twice the load, with prefixes cached and not."""
    return {
        f"gap {gap_s} s, {'cached' if prefix_cache else 'not cached'}": fingerprint(
            policy, prefix_cache=prefix_cache, gap_s=gap_s
        )
        for gap_s in (2.0, 1.0, 0.5)
        for prefix_cache in (True, False)
    }


@pytest.mark.parametrize("name", POLICIES)
def test_results_are_those_recorded(name: str) -> None:
    assert fingerprints(POLICIES[name]) == json.loads(RECORD.read_text(encoding="utf-8"))[name]


def test_the_recorded_runs_differ_from_policy_to_policy() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert set(recorded) == set(POLICIES)
    assert len({tuple(each.values()) for each in recorded.values()}) == len(POLICIES)


if __name__ == "__main__":
    record = {name: fingerprints(policy) for name, policy in POLICIES.items()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
