"""Delay: a queue delay that falls as time passes, and the delay that a request causes to others.

Two refinements of what dispatch weighs, for engines that batch:

- `t_queue` as a clock. A sum over unfinished requests counts a prompt that was computed long ago
  for as long as its answer is being written. `busy_after` keeps, for each instance, the moment at
  which it will have done the work appointed to it so far; `queue_delay` is what is left of that. It
  goes up at dispatch, down as time passes, and is set to 0 when nothing is unfinished there.
- `t_comp` with what it does to the neighbours. While a prompt is computed, every sequence that
  decodes on that instance stands still, so that appointing a request costs all of them its prefill.
"""

from __future__ import annotations

from collections.abc import Sequence

from hexprefect.scheduling.occupancy import Coefficients


def busy_after(busy_until: float, *, now: float, work_s: float) -> float:
    """The moment until which an instance is busy once it has `work_s` more to do.

    Args:
        busy_until: until when it was busy; may lie in the past.
        now: on the same clock.
        work_s: occupancy of the appointed request, in seconds.
    """
    return (busy_until if busy_until > now else now) + work_s


def queue_delay(busy_until: float, *, now: float) -> float:
    """`t_queue(m)` in seconds: how long the work appointed so far still takes; never negative."""
    return busy_until - now if busy_until > now else 0.0


def queue_delays(busy_until: Sequence[float], *, now: float) -> list[float]:
    """`queue_delay` of each instance."""
    return [until - now if until > now else 0.0 for until in busy_until]


def with_delay_caused(
    completion_s: Sequence[float],
    profiles: Sequence[Coefficients],
    input_tokens: int,
    cached_tokens: Sequence[int],
    others: Sequence[int],
) -> list[float]:
    """`t_comp` on each instance plus the time for which its prompt stops those that run there.

    Args:
        completion_s: `t_comp(r, m)` of each instance.
        profiles: the coefficients of each instance's profile.
        input_tokens: of the prompt.
        cached_tokens: input tokens in the prefix cache of each, at most `input_tokens`.
        others: sequences that run on each.
    """
    return [
        completion + beside * profile[1] * (input_tokens - cached)
        for completion, profile, cached, beside in zip(
            completion_s, profiles, cached_tokens, others, strict=True
        )
    ]
