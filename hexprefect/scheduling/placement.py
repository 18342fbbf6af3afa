"""Placement: the decision of `dispatch.choose` without its scores, for millions in a row.

`place` decides from lists of costs and delays. The other two reckon the costs as well, each for one
way to count them, in a single pass over the instances: they are what a simulation spends its time
in. All are equal, bit for bit, to the plain functions that their docstrings name (tests compare
them), and that is what they mean. `place_by_clock` takes lists and reads them by index, which is
what a compiler makes fast; where nothing is compiled, `scheduling.unrolled` is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from hexprefect.scheduling.dispatch import DispatchPolicy, NoInstance, choose
from hexprefect.scheduling.occupancy import Coefficients


def place(
    completion_s: Sequence[float],
    queue_delay_s: Sequence[float],
    *,
    alpha: float,
    policy: DispatchPolicy = "normalised",
    beta: float = 1.0,
) -> int:
    """What `choose` returns for the same arguments, bit for bit, in one pass over the instances.

    Raises:
        NoInstance: when there is none to choose from.
    """
    if policy != "normalised":
        return choose(completion_s, queue_delay_s, alpha=alpha, policy=policy, beta=beta)
    if not completion_s:
        raise NoInstance("no instance can serve the request")
    longest = max(completion_s)
    fullest = max(queue_delay_s)
    speed = alpha / longest if longest > 0 else 0.0
    load = (1.0 - alpha) / fullest if fullest > 0 else 0.0
    scores = [
        speed * completion + load * delay
        for completion, delay in zip(completion_s, queue_delay_s, strict=True)
    ]
    return scores.index(min(scores))


def place_by_tables(
    starts_s: Sequence[float],
    output_tokens: float,
    queue_delay_s: Sequence[float],
    *,
    profiles: Sequence[Coefficients],
    alpha: float,
) -> tuple[int, float]:
    """`place` by `completion_seconds_each` with nothing cached and nobody beside.

    Args:
        starts_s: `c + a · input` of the request on each instance, reckoned before.
        output_tokens: predicted.
        queue_delay_s: `t_queue(m)` of each.
        profiles: the coefficients of each instance's profile.
        alpha: as for `place`.

    Returns:
        The index of the instance, and `t_comp` there in seconds.
    """
    longest = 0.0
    costs = []
    for start, profile in zip(starts_s, profiles, strict=True):
        cost = start + profile[2] * output_tokens
        costs.append(cost)
        if cost > longest:
            longest = cost
    fullest = max(queue_delay_s)
    speed = alpha / longest if longest > 0 else 0.0
    load = (1.0 - alpha) / fullest if fullest > 0 else 0.0
    best = 0
    lowest = inf
    for index, (cost, delay) in enumerate(zip(costs, queue_delay_s, strict=True)):
        score = speed * cost + load * delay
        if score < lowest:
            lowest = score
            best = index
    return best, costs[best]


def place_by_clock(
    input_tokens: int,
    output_tokens: float,
    cached_tokens: list[int],
    admitted: list[int],
    most_beside: list[int],
    busy_until: list[float],
    waiting_s: list[float],
    stall_s: list[float],
    now: float,
    *,
    profiles: list[Coefficients],
    alpha: float,
) -> tuple[int, float]:
    """`place` by `with_delays_beside` of `completion_seconds_each`, against `queue_delays`.

    Args:
        input_tokens: of the prompt.
        output_tokens: predicted.
        cached_tokens: input tokens in the prefix cache of each, at most `input_tokens`.
        admitted: requests that each was given; no more than `most_beside` run beside another.
        most_beside: its depth less one.
        busy_until: until when each has work, see `delay.busy_after`.
        waiting_s: occupancy of what waits for each.
        stall_s: see `delay.stall_seconds`.
        now: on the same clock.
        profiles: the coefficients of each instance's profile.
        alpha: as for `place`.

    Returns:
        The index of the instance, and `t_comp` there in seconds, without those delays.
    """
    longest = 0.0
    fullest = 0.0
    costs: list[float] = []
    weighed: list[float] = []
    delays: list[float] = []
    for index, (fixed, each_input, each_output, growth) in enumerate(profiles):
        beside = admitted[index]
        if beside > most_beside[index]:
            beside = most_beside[index]
        uncached = input_tokens - cached_tokens[index]
        cost = fixed + each_input * uncached + each_output * (1.0 + growth * beside) * output_tokens
        costs.append(cost)
        cost += beside * each_input * uncached
        cost += beside * stall_s[index] * output_tokens
        weighed.append(cost)
        if cost > longest:
            longest = cost
        delay = busy_until[index] - now
        if delay < waiting_s[index]:
            delay = waiting_s[index]
        delays.append(delay)
        if delay > fullest:
            fullest = delay
    speed = alpha / longest if longest > 0 else 0.0
    load = (1.0 - alpha) / fullest if fullest > 0 else 0.0
    best = 0
    lowest = inf
    for index, cost in enumerate(weighed):
        score = speed * cost + load * delays[index]
        if score < lowest:
            lowest = score
            best = index
    return best, costs[best]
