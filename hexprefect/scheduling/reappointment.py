"""Reappointment: when a waiting request leaves its instance's queue for another's.

A waiting request is not tied to its instance. An instance with a free slot and an empty queue takes
over the first request, in the order of urgency, that it would finish clearly sooner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CLEARLY_SOONER = 0.8
"""Move only for a predicted gain of a fifth: predictions are off by 3–5 % on average, and a moved
request loses the prefix that its old instance may hold."""

MOVABLE = 8
"""Requests that an instance with room considers: the first in order over all other queues."""


@dataclass(frozen=True, slots=True)
class Movable:
    """A request waiting elsewhere."""

    id: str
    wait_there_s: float
    """Predicted seconds until it would start where it waits."""
    completion_there_s: float
    completion_here_s: float


def wait_for_slot(
    *, queue_delay_s: float, waiting_s: float, held_completion_s: float, slots: int
) -> float:
    """Predicted seconds until an instance that is full admits the first that waits for it.

    Its queue delay without what waits is what is inside the engine; but no slot frees before a
    running request ends, and of these one is half done on average.

    Args:
        queue_delay_s: `t_queue(m)`.
        waiting_s: occupancy of what waits there, which the delay includes.
        held_completion_s: `t_comp` of what it was given and has not finished, summed.
        slots: requests that it is given at once.
    """
    inside_s = queue_delay_s - waiting_s
    half_done_s = 0.5 * held_completion_s / slots
    wait_s = half_done_s if half_done_s > inside_s else inside_s
    return wait_s if wait_s > 0.0 else 0.0


def is_clearly_sooner(
    *,
    wait_there_s: float,
    completion_there_s: float,
    completion_here_s: float,
    clearly: float = CLEARLY_SOONER,
) -> bool:
    """Whether an idle slot here would finish a waiting request clearly sooner.

    Args:
        wait_there_s, completion_there_s: predicted seconds until it would start where it waits, and
            `t_comp` there.
        completion_here_s: `t_comp` here.
        clearly: the fraction of the time there below which the time here counts as clearly sooner.
    """
    return completion_here_s < clearly * (wait_there_s + completion_there_s)


def choose_reappointment(
    candidates: Iterable[Movable], *, clearly: float = CLEARLY_SOONER
) -> str | None:
    """Id of the first candidate for which `is_clearly_sooner`, or `None`.

    Args:
        candidates: in the order of urgency, over all other instances.
        clearly: see there.
    """
    for candidate in candidates:
        if is_clearly_sooner(
            wait_there_s=candidate.wait_there_s,
            completion_there_s=candidate.completion_there_s,
            completion_here_s=candidate.completion_here_s,
            clearly=clearly,
        ):
            return candidate.id
    return None
