"""Occupancy: how much of an instance's time a request takes, as against how long it lasts.

A request lasts `t_comp`, but while it decodes the instance serves its neighbours in the same steps.
What it takes away from them is its prefill, and its share of the steps it takes part in. A queue
delay that is a sum of occupancies predicts when the instance will be free; a sum of `t_comp`
overstates it by the batch size for answers, and not at all for prompts, and so misjudges hardware
that is slow at one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hexprefect.scheduling.cost import Profile, RequestSize

Coefficients = tuple[float, float, float, float]
"""`c, a, b` and the batch growth of a profile."""


DEFAULT_BATCH = 16.0
"""Sequences that share a step, where nothing better is known."""


def occupancy_seconds(
    size: RequestSize, profile: Profile, *, cached_tokens: int = 0, batch: float = DEFAULT_BATCH
) -> float:
    """Seconds of the engine's time that a request takes: `c + a·uncached + b(batch)/batch·output`.

    Args:
        size: the request.
        profile: of the instance.
        cached_tokens: input tokens in the instance's prefix cache.
        batch: sequences that share a step.
    """
    uncached = max(0, size.input_tokens - cached_tokens)
    return (
        profile.fixed_s
        + profile.input_s_per_token * uncached
        + profile.decode_s_per_token(batch) / batch * size.output_tokens
    )


def occupancy_coefficients(profile: Profile, *, batch: float = DEFAULT_BATCH) -> Coefficients:
    """The coefficients with which `completion_seconds_of` gives the occupancy instead."""
    return (
        profile.fixed_s,
        profile.input_s_per_token,
        profile.decode_s_per_token(batch) / batch,
        0.0,
    )


def coefficients(profile: Profile) -> Coefficients:
    """What `completion_seconds_each` needs of a profile."""
    return (
        profile.fixed_s,
        profile.input_s_per_token,
        profile.output_s_per_token,
        profile.batch_growth,
    )


def completion_seconds_of(
    profile: Coefficients, uncached_tokens: int, output_tokens: float, others: int = 0
) -> float:
    """`completion_seconds` from plain numbers, bit for bit.

    Args:
        profile: the coefficients of the instance's profile.
        uncached_tokens: input tokens that are not cached; not negative.
        output_tokens: predicted.
        others: sequences that run there already; the request makes one more.
    """
    fixed, each_input, each_output, growth = profile
    return (
        fixed
        + each_input * uncached_tokens
        + each_output * (1.0 + growth * others) * (output_tokens)
    )


def completion_seconds_each(
    profiles: Sequence[Coefficients],
    input_tokens: int,
    output_tokens: float,
    cached_tokens: Sequence[int],
    others: Sequence[int],
) -> list[float]:
    """`completion_seconds` on each of several instances, bit for bit, in one call.

    Args:
        profiles: the coefficients of each instance's profile.
        input_tokens: of the prompt.
        output_tokens: predicted.
        cached_tokens: input tokens in the prefix cache of each, at most `input_tokens`.
        others: sequences that run on each already; the request makes one more.
    """
    return [
        fixed
        + each_input * (input_tokens - cached)
        + each_output * (1.0 + growth * beside) * output_tokens
        for (fixed, each_input, each_output, growth), cached, beside in zip(
            profiles, cached_tokens, others, strict=True
        )
    ]


def mean_profile(profiles: Sequence[Profile]) -> Profile:
    """The profile whose `t_comp` is the mean `t̄` over `profiles` (which is linear in `c, a, b`).

    Raises:
        ValueError: when there are none.
    """
    if not profiles:
        raise ValueError("a mean needs at least one profile")
    number = len(profiles)
    return Profile(
        name="mean",
        fixed_s=sum(profile.fixed_s for profile in profiles) / number,
        input_s_per_token=sum(profile.input_s_per_token for profile in profiles) / number,
        output_s_per_token=sum(profile.output_s_per_token for profile in profiles) / number,
    )
