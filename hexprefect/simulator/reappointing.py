"""Reappointing: what an instance with room takes over from the queues of others."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from hexprefect.scheduling.reappointment import MOVABLE, is_clearly_sooner, wait_for_slot
from hexprefect.simulator.appointing import Load
from hexprefect.simulator.requests import Request


def to_take_over(load: Load, index: int, now: float) -> tuple[Request, int, float] | None:
    """What `choose_reappointment` chooses of the first in order over all other queues.

    Four of five looks find something, mostly the first that they consider. So the queues are merged
    only as far as needed, and nothing is reckoned of what comes after the choice, or of an instance
    of whose queue nothing was considered (a test compares).

    Args:
        load: of the cluster.
        index: the instance, which has room and nothing waiting.
        now: the moment, in seconds.

    Returns:
        The request, with its believed cached tokens and its `t_comp` on that instance.
    """
    here = load.instances[index]
    heads = [
        (instance.queue[0], 0, other)
        for other, instance in enumerate(load.instances)
        if instance.queue and other != index
    ]
    heapify(heads)
    waits_s: dict[int, float] = {}
    considered = 0
    while heads:
        entry, place, other = heads[0]
        request = entry[3]
        wait_s = waits_s[other] if place else _first_wait_seconds(load, other, now)
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
        queue = load.instances[other].queue
        if place < len(queue):
            waits_s[other] = wait_s + request.work_s
            heapreplace(heads, (queue[place], place, other))
        else:
            heappop(heads)
    return None


def _first_wait_seconds(load: Load, index: int, now: float) -> float:
    """Predicted seconds until the first that waits for an instance starts there."""
    return wait_for_slot(
        queue_delay_s=load.delay_at(index, now),
        waiting_s=load.waiting_s[index],
        held_completion_s=load.held_s[index],
        slots=load.instances[index].depth,
    )
