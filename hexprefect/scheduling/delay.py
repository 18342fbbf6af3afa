"""Delay: a queue delay that falls as time passes, and the delays of requests that run side by side.

Three refinements of what dispatch weighs, for engines that batch:

- `t_queue` as a clock. A sum over unfinished requests counts a prompt that was computed long ago
  for as long as its answer is being written. `busy_after` keeps, for each instance, the moment at
  which it will have done the work appointed to it so far; `queue_delay` is what is left of that. It
  goes up at dispatch, down as time passes, and is set to 0 when nothing is unfinished there.
- `t_comp` with what it does to the neighbours. While a prompt is computed, every sequence that
  decodes on that instance stands still, so that appointing a request costs all of them its prefill.
- `t_comp` with what the neighbours do to it. They end, and others take their places: while a
  request decodes for as long as a mean request lasts, each place beside it begins one more prompt,
  which stops it. Without this an instance that is a little faster is given all for as long as it
  has no queue: at half the capacity that cost 4 % of the P95 where hardware differs little.
"""

from __future__ import annotations

from collections.abc import Sequence

from hexprefect.scheduling.occupancy import Coefficients

OVERDUE = 8.0
"""Times its expected duration after which a request is overdue: more than its neighbours in a full
engine slow it down (`scheduling.depth`)."""


def busy_after(busy_until: float, *, now: float, work_s: float) -> float:
    """The moment until which an instance is busy once it has `work_s` more to do.

    Args:
        busy_until: until when it was busy; may lie in the past.
        now: on the same clock.
        work_s: occupancy of the appointed request, in seconds.
    """
    return (busy_until if busy_until > now else now) + work_s


def queue_delay(
    busy_until: float, *, now: float, waiting_s: float = 0.0, silent_s: float = 0.0
) -> float:
    """`t_queue(m)` in seconds: how long the work appointed so far still takes; never negative.

    A clock runs on when the engine does not. So the delay is never less than what certainly is
    still to be done, all that waits; and an instance that has been silent for longer than any of
    its requests should take is expected to stay so for as long again.

    Args:
        busy_until: see `busy_after`.
        now: on the same clock.
        waiting_s: occupancy of what waits for the instance, in seconds.
        silent_s: seconds for which what it holds is overdue, see `silent_seconds`.
    """
    clock = busy_until - now
    return (clock if clock > waiting_s else waiting_s) + silent_s


def queue_delays(
    busy_until: Sequence[float], *, now: float, waiting_s: Sequence[float] | None = None
) -> list[float]:
    """`queue_delay` of each instance, none of them silent."""
    if waiting_s is None:
        return [until - now if until > now else 0.0 for until in busy_until]
    return [
        until - now if until - now > waiting else waiting
        for until, waiting in zip(busy_until, waiting_s, strict=True)
    ]


def promised_after(promised_until: float, *, now: float, completion_s: float) -> float:
    """The moment by which an instance should have finished all it holds, with one request more.

    Args:
        promised_until: the moment without it.
        now: when it is admitted.
        completion_s: `t_comp` of the request.
    """
    return max(promised_until, now + OVERDUE * completion_s)


def silent_seconds(promised_until: float, *, now: float, held: int) -> float:
    """Seconds for which the last of what an instance holds is overdue; 0 when it holds nothing."""
    return max(0.0, now - promised_until) if held else 0.0


def stall_seconds(profile: Coefficients, *, uncached_tokens: float, output_tokens: float) -> float:
    """Seconds by which each token of an answer comes later for each neighbour, because prompts of
    those that follow the neighbour stop it: `b · a·uncached / (c + a·uncached + b·output)`.

    Args:
        profile: the coefficients of the instance's profile.
        uncached_tokens: mean input tokens of its requests that were not cached; 0 where nothing is
            known.
        output_tokens: their mean output tokens.
    """
    fixed, each_input, each_output, _ = profile
    prompt_s = each_input * uncached_tokens
    if prompt_s <= 0.0:
        return 0.0
    return each_output * prompt_s / (fixed + prompt_s + each_output * output_tokens)


def with_delays_beside(
    completion_s: Sequence[float],
    profiles: Sequence[Coefficients],
    input_tokens: int,
    output_tokens: float,
    cached_tokens: Sequence[int],
    others: Sequence[int],
    stall_s: Sequence[float],
) -> list[float]:
    """`t_comp` on each instance, plus the time for which its prompt stops those that run there,
    plus the time for which the prompts of those that follow them stop it.

    Args:
        completion_s: `t_comp(r, m)` of each instance.
        profiles: the coefficients of each instance's profile.
        input_tokens: of the prompt.
        output_tokens: predicted.
        cached_tokens: input tokens in the prefix cache of each, at most `input_tokens`.
        others: sequences that run on each.
        stall_s: `stall_seconds` of each.
    """
    return [
        completion + beside * profile[1] * (input_tokens - cached) + beside * stall * output_tokens
        for completion, profile, cached, beside, stall in zip(
            completion_s, profiles, cached_tokens, others, stall_s, strict=True
        )
    ]
