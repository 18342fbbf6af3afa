"""Placement: the decision of `dispatch.choose` without its scores, for millions in a row."""

from __future__ import annotations

from collections.abc import Sequence

from hexprefect.scheduling.dispatch import DispatchPolicy, NoInstance, choose


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
