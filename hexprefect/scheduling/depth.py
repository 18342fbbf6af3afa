"""Admission depth: how many requests an instance is given at once, from how much they slow down.

What is inside an engine shares its steps and can no longer be re-ordered. With `d` requests there,
a typical one lasts about `d · prefill + decode` instead of `prefill + decode`: prompts are computed
one after the other, while answers grow side by side. So a limit to the slowdown is a depth, of its
own for each instance: an instance slow at prompts gets fewer, a warm prefix cache allows more.
"""

from __future__ import annotations

from hexprefect.scheduling.cost import Profile

LEARN_EVERY = 16
"""Finished requests of an instance between two changes of its depth."""

MEMORY = 500
"""Requests over which the mean size, by which it is set, forgets."""


def depth_for_slowdown(
    slowdown: float,
    profile: Profile,
    *,
    uncached_tokens: float,
    output_tokens: float,
    least: int = 2,
) -> int:
    """The most requests at once that slow a typical one down by no more than `slowdown`.

    Args:
        slowdown: how many times longer than alone a request may last in the engine; at least 1.
        profile: of the instance.
        uncached_tokens: mean input tokens of a request that were not cached.
        output_tokens: mean output tokens of a request.
        least: the depth is never below this, so that the engine need not idle between two requests.
    """
    prefill_s = profile.fixed_s + profile.input_s_per_token * uncached_tokens
    decode_s = profile.output_s_per_token * output_tokens
    if prefill_s <= 0:
        return 1 << 20
    return max(least, int(1 + (slowdown - 1) * (prefill_s + decode_s) / prefill_s))
