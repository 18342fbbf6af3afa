"""Reappointing: what an instance with room takes over from the queues of others."""

from __future__ import annotations

from collections.abc import Iterator

from hexprefect.scheduling.reappointment import (
    MOVABLE,
    Movable,
    choose_reappointment,
    wait_for_slot,
)
from hexprefect.simulator.appointing import Load
from hexprefect.simulator.requests import Entry, Request


def to_take_over(load: Load, index: int, now: float) -> tuple[Request, int, float] | None:
    """The first request in order that an instance would finish clearly sooner, if there is one.

    Args:
        load: of the cluster.
        index: the instance, which has room and nothing waiting.
        now: the moment, in seconds.

    Returns:
        The request, with its believed cached tokens and its `t_comp` on that instance.
    """
    movables = []
    known: list[tuple[Request, int, float]] = []
    waiting = sorted(_elsewhere(load, index, now), key=lambda pair: pair[0])
    for entry, wait_s in waiting[:MOVABLE]:
        request = entry[3]
        cached, costs, _ = load.costs(request)
        movables.append(
            Movable(
                id=str(len(known)),
                wait_there_s=wait_s,
                completion_there_s=request.completion_s,
                completion_here_s=costs[index],
            )
        )
        known.append((request, cached[index], costs[index]))
    chosen = choose_reappointment(movables)
    return None if chosen is None else known[int(chosen)]


def _elsewhere(load: Load, index: int, now: float) -> Iterator[tuple[Entry, float]]:
    """The first in each other queue, with the predicted seconds until they would start."""
    delays = load.delays(now)
    for other, instance in enumerate(load.instances):
        if other == index or not instance.queue:
            continue
        ahead_s = wait_for_slot(
            queue_delay_s=delays[other],
            waiting_s=load.waiting_s[other],
            held_completion_s=load.held_s[other],
            slots=instance.depth,
        )
        for entry in instance.queue[:MOVABLE]:
            yield entry, ahead_s
            ahead_s += entry[3].work_s
