"""Remaining work: how long a query still takes after one of its requests, from finished queries.

The number of calls of an agentic query is not known before it ends: self-correction stops when the
SQL runs. So what is left is learned as a mean over finished queries, by stage and by how often the
query has been there: after the third `self_correction` less is left than after the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

MEMORY = 200
"""Finished queries over which a mean forgets."""

MOST_VISITS = 12
"""Visits told apart; later ones share the last."""


class RemainingHistory(NamedTuple):
    """Running mean of what was left, in seconds at the mean cost `t̄`, on the critical path."""

    queries: int = 0
    seconds: float = 0.0

    def after(self, seconds: float) -> RemainingHistory:
        """The history with one more finished query."""
        weight = 1.0 / min(self.queries + 1, MEMORY)
        return RemainingHistory(self.queries + 1, self.seconds + weight * (seconds - self.seconds))


Remaining = Mapping[tuple[str, int], RemainingHistory]
"""`(stage, visit)` → history, visits counted from 0."""


def predicted_remaining_seconds(
    history: Remaining, stage: str, visit: int, *, expected: float = 0.0, enough: int = 1
) -> float:
    """Seconds that a query is expected to need after this visit of `stage` has finished.

    Args:
        history: of finished queries.
        stage: of the request.
        visit: how many requests of the stage the query had before this one.
        expected: for a stage that too few finished queries have visited.
        enough: finished queries from which a mean is trusted.
    """
    seen = visit if visit < MOST_VISITS else MOST_VISITS
    while seen >= 0:
        known = history.get((stage, seen))
        if known is not None and known.queries >= enough:
            return known.seconds
        seen -= 1
    return expected


def remaining_after(
    costs_s: Sequence[float], followers: Sequence[Sequence[int]]
) -> tuple[float, ...]:
    """What was left after each request of a finished query, parallel branches counted once.

    Args:
        costs_s: `t̄` of each request, every one after all that it needs.
        followers: indices of the requests that needed it.
    """
    after = [0.0] * len(costs_s)
    for index in range(len(costs_s) - 1, -1, -1):
        longest = 0.0
        for follower in followers[index]:
            rest = costs_s[follower] + after[follower]
            if rest > longest:
                longest = rest
        after[index] = longest
    return tuple(after)
