"""What a policy knows: histories of finished requests and queries, never the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hexprefect.scheduling import Profile
from hexprefect.scheduling.occupancy import coefficients, completion_seconds_of, mean_profile
from hexprefect.scheduling.prediction import ANY_DATABASE, StageHistory, predicted_output_tokens
from hexprefect.scheduling.remaining import (
    MOST_VISITS,
    RemainingHistory,
    predicted_remaining_seconds,
    remaining_after,
)
from hexprefect.simulator.facts import expected_output_tokens
from hexprefect.simulator.workload import Query

_MOST_QUERIES = 4096
"""Query objects whose costs are kept: all of a recorded trace, a window of a generated one."""

_UNKNOWN = StageHistory()
_NEVER_SEEN = RemainingHistory()


class Knowledge:
    """Predictions, learned as requests and queries finish.

    Args:
        profiles: of the cluster's instances; the mean cost `t̄` is over them.
        expected: output tokens of a stage of which nothing has finished; the published means of the
            reference's stages when left out.
    """

    def __init__(
        self, profiles: Sequence[Profile], expected: Mapping[str, float] | None = None
    ) -> None:
        self.profiles = tuple(profiles)
        self._mean = coefficients(mean_profile(profiles))
        self.stages: dict[tuple[str, str], StageHistory] = {}
        self.remaining: dict[tuple[str, int], RemainingHistory] = {}
        self.standalone = RemainingHistory()
        self._expected = expected_output_tokens() if expected is None else expected
        self._alone: dict[int, tuple[Query, float]] = {}
        self._after: dict[int, tuple[Query, tuple[float, ...], float]] = {}

    def output_tokens(self, stage: str, database: str) -> float:
        """What answer to expect of a call, before it runs."""
        return predicted_output_tokens(
            self.stages, stage, database, expected=self._expected.get(stage)
        )

    def mean_seconds(self, input_tokens: int, output_tokens: float) -> float:
        """`t̄` of a request."""
        return completion_seconds_of(self._mean, input_tokens, output_tokens)

    def remaining_after(self, stage: str, visit: int) -> float:
        """Predicted seconds that a query still needs after a call."""
        return predicted_remaining_seconds(self.remaining, stage, visit)

    def request_finished(self, query: Query, index: int) -> None:
        """Learn the lengths of a finished call."""
        call = query.calls[index]
        stages = self.stages
        key = (call.stage, ANY_DATABASE)
        stages[key] = stages.get(key, _UNKNOWN).after(
            input_tokens=call.input_tokens, output_tokens=call.output_tokens
        )
        if query.database:
            key = (call.stage, query.database)
            stages[key] = stages.get(key, _UNKNOWN).after(
                input_tokens=call.input_tokens, output_tokens=call.output_tokens
            )

    def query_finished(self, query: Query) -> None:
        """Learn what was left after each call of a finished query, and how long it was alone."""
        after, whole = self._costs(query)
        self.standalone = self.standalone.after(whole)
        remaining = self.remaining
        for call, visit, seconds in zip(query.calls, query.visits, after, strict=True):
            key = (call.stage, min(visit, MOST_VISITS))
            remaining[key] = remaining.get(key, _NEVER_SEEN).after(seconds)

    def alone_seconds(self, query: Query) -> float:
        """The query's true duration alone, of which SLOs are multiples. Not for policies."""
        known = self._alone.get(id(query))
        if known is None:
            if len(self._alone) >= _MOST_QUERIES:
                self._alone.clear()
            known = self._alone[id(query)] = (query, query.alone_seconds(self.profiles))
        return known[1]

    def _costs(self, query: Query) -> tuple[tuple[float, ...], float]:
        known = self._after.get(id(query))
        if known is None:
            if len(self._after) >= _MOST_QUERIES:
                self._after.clear()
            costs = [
                self.mean_seconds(call.input_tokens, float(call.output_tokens))
                for call in query.calls
            ]
            after = remaining_after(costs, query.followers)
            whole = max(cost + rest for cost, rest in zip(costs, after, strict=True))
            known = self._after[id(query)] = (query, after, whole)
        return known[1], known[2]
