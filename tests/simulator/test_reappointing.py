"""Reappointing: the lazy look over the queues chooses what `choose_reappointment` chooses."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from hexprefect.scheduling.reappointment import (
    MOVABLE,
    Movable,
    choose_reappointment,
    wait_for_slot,
)
from hexprefect.simulator import Generator, Policy, Simulation, named_policy, parse_cluster
from hexprefect.simulator.appointing import Load
from hexprefect.simulator.reappointing import to_take_over

CLUSTER = parse_cluster("a100:2,a6000:1,l40s:1")
QUERIES = Generator(family="bird", seed=3).some(40)


def chosen_plainly(load: Load, index: int, now: float) -> int | None:
    """The number of the request that leaves its queue: all candidates, in order, in one list."""
    waits = {}
    delays = load.delays(now)
    for other, instance in enumerate(load.instances):
        ahead_s = wait_for_slot(
            queue_delay_s=delays[other],
            waiting_s=load.waiting_s[other],
            held_completion_s=load.held_s[other],
            slots=instance.depth,
        )
        for entry in instance.queue:
            waits[entry[2]] = ahead_s
            ahead_s += entry[3].work_s
    waiting = sorted(
        entry
        for other, instance in enumerate(load.instances)
        if other != index
        for entry in instance.queue
    )
    chosen = choose_reappointment(
        Movable(
            id=str(number),
            wait_there_s=waits[number],
            completion_there_s=request.completion_s,
            completion_here_s=load.costs(request)[1][index],
        )
        for _, _, number, request in waiting[:MOVABLE]
        if load.instances[index].can_hold(request) and load.instances[index].fits(request)
    )
    return None if chosen is None else int(chosen)


class Compared(Simulation):
    """Compares each look with the plain one, also those of instances that would not look now."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.found = 0
        self.refused = 0

    def _admit(self, index: int) -> None:
        load, now = self.load, self.now
        for here in range(len(self.instances)):
            plainly = chosen_plainly(load, here, now)
            found = to_take_over(load, here, now)
            assert (None if found is None else found[0].number) == plainly
            if found is not None:
                self.found += 1
                request, cached_tokens, completion_s = found
                cached, costs, _ = load.costs(request)
                assert (cached_tokens, completion_s) == (cached[here], costs[here])
            elif any(i.queue for other, i in enumerate(self.instances) if other != here):
                self.refused += 1
        super()._admit(index)


@pytest.mark.parametrize(
    "policy",
    [
        replace(named_policy("hexprefect"), slowdown=1.5),
        replace(named_policy("hexprefect"), alpha=0.95, depth=4, slowdown=None),
        replace(named_policy("hexgen"), reappoints=True, alpha=0.5, depth=4),
    ],
    ids=["learned depth", "fast-minded", "sums"],
)
def test_each_look_chooses_what_the_plain_function_chooses(policy: Policy) -> None:
    rng = random.Random("arrivals")
    moment = 0.0
    arrivals = []
    for query in QUERIES:
        moment += rng.expovariate(0.6)
        arrivals.append((moment, query))
    simulation = Compared(CLUSTER, policy)
    simulation.run(arrivals)
    assert simulation.found > 50
    assert simulation.refused > 0
