"""Admission: which waiting requests start when an instance has room (the local level).

Law 4: the request admitted is the first in the instance's order that fits, ties by
`(ready_at, id)`; a request passed over because it did not fit is not passed over for ever: after
`patience` others have gone before it, nobody passes it any more until it fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_PATIENCE = 8
"""Requests that may overtake one that does not fit. Eight lets a light stage of a few queries by
while a long prompt waits for memory, and bounds its extra wait to about one batch."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in an instance's queue."""

    id: str
    order_key: float
    """`latest_start` by default: smaller goes first."""
    ready_at: float
    kv_tokens: int
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """Who starts now, and who was overtaken."""

    admitted: tuple[str, ...]
    passed_over: tuple[str, ...]
    """Once for each time that it was overtaken."""


def queue_order(request: Waiting) -> tuple[float, float, str]:
    """The order of an instance's queue."""
    return (request.order_key, request.ready_at, request.id)


def admit(
    waiting: Sequence[Waiting],
    *,
    free_slots: int,
    free_kv_tokens: int | None,
    patience: int = DEFAULT_PATIENCE,
) -> Admission:
    """Choose the requests that start now.

    Args:
        waiting: in `queue_order`; the head of the queue is enough.
        free_slots: requests that may start.
        free_kv_tokens: KV memory left, or `None` when it is not a limit.
        patience: how often one request may be overtaken.
    """
    admitted: list[str] = []
    skipped: list[str] = []
    passed: list[str] = []
    overtakers_left = math.inf
    for request in waiting:
        if len(admitted) >= free_slots or overtakers_left <= 0:
            break
        if free_kv_tokens is not None and request.kv_tokens > free_kv_tokens:
            overtakers_left = min(overtakers_left, patience - request.passed_over)
            skipped.append(request.id)
            continue
        admitted.append(request.id)
        passed.extend(skipped)
        overtakers_left -= 1
        if free_kv_tokens is not None:
            free_kv_tokens -= request.kv_tokens
    return Admission(admitted=tuple(admitted), passed_over=tuple(passed))
