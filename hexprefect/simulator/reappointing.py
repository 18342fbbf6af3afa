"""Reappointing: what an instance with room takes over from the queues of others."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from hexprefect.scheduling.reappointment import MOVABLE, is_clearly_sooner, wait_for_slot
from hexprefect.simulator.appointing import Load
from hexprefect.simulator.requests import Entry, Request


def to_take_over(load: Load, index: int, now: float) -> tuple[Request, int, float] | None:
    """What `choose_reappointment` chooses of the first in order over all other queues.

    Four of five looks find something, mostly the first that they consider. So the queues are merged
    only as far as needed, and nothing is reckoned of what comes after the choice (a test compares).

    Args:
        load: of the cluster.
        index: the instance, which has room and nothing waiting.
        now: the moment, in seconds.

    Returns:
        The request, with its believed cached tokens and its `t_comp` on that instance.
    """
    here = load.instances[index]
    heads = _heads(load, index, now)
    considered = 0
    while heads:
        entry, place, queue, wait_s = heads[0]
        request = entry[3]
        cached_tokens, completion_s = load.cost_at(request, index)
        if (here.can_hold(request) and here.fits(request)) and is_clearly_sooner(
            wait_there_s=wait_s,
            completion_there_s=request.completion_s,
            completion_here_s=completion_s,
        ):
            return request, cached_tokens, completion_s
        considered += 1
        if considered == MOVABLE:
            break
        place += 1
        if place < len(queue):
            heapreplace(heads, (queue[place], place, queue, wait_s + request.work_s))
        else:
            heappop(heads)
    return None


def _heads(load: Load, index: int, now: float) -> list[tuple[Entry, int, list[Entry], float]]:
    """The first in each other queue, its place there, and the predicted seconds until it starts."""
    delays = load.delays(now)
    heads = [
        (
            instance.queue[0],
            0,
            instance.queue,
            wait_for_slot(
                queue_delay_s=delays[other],
                waiting_s=load.waiting_s[other],
                held_completion_s=load.held_s[other],
                slots=instance.depth,
            ),
        )
        for other, instance in enumerate(load.instances)
        if instance.queue and other != index
    ]
    heapify(heads)
    return heads
