"""Tables: what can be reckoned of a query before it runs, once for all runs on the same profiles.

A tuning run replays one window of queries under dozens of policies and several seeds. What a query
costs alone, what is left after each of its calls, and to which histories its calls belong depend on
none of them: it is reckoned once and looked up here. Figures that come from the true lengths of
answers are for SLOs, and for histories once a query has finished; no decision reads them before.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np

from hexprefect.scheduling import Profile
from hexprefect.scheduling.occupancy import coefficients, mean_profile
from hexprefect.scheduling.prediction import ANY_DATABASE
from hexprefect.scheduling.remaining import MOST_VISITS, remaining_after
from hexprefect.simulator.engine_values import Prefix
from hexprefect.simulator.workload import Query

_MOST_QUERIES = 2048
"""Queries whose tables are kept: all of a recorded trace, a window of a generated one."""

VISITS = MOST_VISITS + 1
"""Visits of a stage that are told apart."""


_Numbers = tuple[tuple[int, ...], int, int, int]


class CallTable:
    """One call of a query, for all policies."""

    __slots__ = (
        "answer_tokens",
        "any_history",
        "histories",
        "index",
        "input_tokens",
        "mean_start_s",
        "output_tokens",
        "own_history",
        "prefix",
        "prefix_number",
        "prefix_tokens",
        "remaining",
        "starts_s",
    )

    index: int
    input_tokens: int
    output_tokens: int
    answer_tokens: float
    """The output tokens again: arithmetic of floats with ints takes three times as long."""
    prefix: Prefix
    prefix_number: int
    """Equal for equal prefixes."""
    prefix_tokens: int
    """Of all segments; -1 where that many cached tokens do not tell that all are cached."""
    any_history: int
    """Number of the history of its stage over all databases."""
    own_history: int
    """Number of the history of its stage and database."""
    histories: tuple[int, ...]
    """Both, each once."""
    remaining: int
    """Number of the history of what is left after its stage and visit; the numbers before it are
    those of the stage's earlier visits."""
    starts_s: Sequence[float]
    """`c + a · input` on each instance, nothing cached."""
    mean_start_s: float
    """The same at the mean profile."""


class QueryTable:
    """One query, for all policies."""

    __slots__ = ("after_s", "alone_s", "calls", "missing", "query", "roots", "whole_s")

    def __init__(
        self, query: Query, calls: list[CallTable], *, alone_s: float, costs_s: list[float]
    ) -> None:
        self.query = query
        """Held, so that its id cannot become another's while the table is found by it."""
        self.calls = calls
        self.missing = [len(call.needs) for call in query.calls]
        """How many others each call needs."""
        self.roots = [index for index, number in enumerate(self.missing) if not number]
        """Calls that need no other."""
        self.alone_s = alone_s
        """The true duration alone: `Query.alone_seconds`."""
        self.after_s = remaining_after(costs_s, query.followers)
        """What is left after each call, in seconds at the mean cost."""
        self.whole_s = max(map(add, costs_s, self.after_s))
        """The whole critical path at the mean cost."""


class Tables:
    """The tables of the queries seen last, and the numbers of their histories and prefixes.

    Args:
        profiles: of the cluster's instances, in order.
    """

    def __init__(self, profiles: Sequence[Profile]) -> None:
        self.profiles = tuple(profiles)
        self.mean = coefficients(mean_profile(profiles))
        self._fixed = np.array([[profile.fixed_s] for profile in profiles])
        self._each_input = np.array([[profile.input_s_per_token] for profile in profiles])
        self._each_output = np.array([[profile.output_s_per_token] for profile in profiles])
        self.histories: dict[tuple[str, str], int] = {}
        """`(stage, database)` → number."""
        self.stages: dict[str, int] = {}
        self._stage_numbers: dict[str, dict[str, _Numbers]] = {}
        self._prefixes: dict[Prefix, tuple[int, int]] = {}
        self._known: dict[int, QueryTable] = {}

    @property
    def size(self) -> int:
        """Queries whose tables are kept."""
        return len(self._known)

    def of(self, query: Query) -> QueryTable:
        """The table of a query, reckoned when it is first asked for."""
        known = self._known.get(id(query))
        if known is None:
            if len(self._known) >= _MOST_QUERIES:
                self._known.clear()
            known = self._known[id(query)] = self._reckon(query)
        return known

    def remaining_number(self, stage: str, visit: int) -> int:
        """Where the history of what is left after this visit of a stage is kept."""
        stages = self.stages
        number = stages.setdefault(stage, len(stages)) * VISITS
        return number + (visit if visit < MOST_VISITS else MOST_VISITS)

    def history_number(self, stage: str, database: str) -> int:
        """Where the history of a stage and a database is kept."""
        histories = self.histories
        return histories.setdefault((stage, database), len(histories))

    def _reckon(self, query: Query) -> QueryTable:
        inputs = np.array([call.input_tokens for call in query.calls])
        outputs = np.array([call.output_tokens for call in query.calls])
        starts = self._fixed + self._each_input * inputs
        # Summed in the order of the instances, as `mean_completion_seconds` does: bit for bit.
        alone, *others = starts + self._each_output * outputs
        for other in others:
            alone = alone + other
        mean_fixed, mean_input, mean_output, _ = self.mean
        mean_starts = mean_fixed + mean_input * inputs
        return QueryTable(
            query,
            self._calls(query, starts.T.tolist(), mean_starts.tolist()),
            alone_s=_critical_path(query, (alone / len(starts)).tolist()),
            costs_s=(mean_starts + mean_output * outputs).tolist(),
        )

    def _calls(
        self, query: Query, starts: list[list[float]], mean_starts: list[float]
    ) -> list[CallTable]:
        database = query.database
        visits = query.visits
        prefixes = self._prefixes
        known_stages = self._stage_numbers.setdefault(database, {})
        tables = []
        for index, call in enumerate(query.calls):
            table = CallTable()
            table.index = index
            table.input_tokens = call.input_tokens
            table.output_tokens = call.output_tokens
            table.answer_tokens = float(call.output_tokens)
            table.prefix = prefix = call.prefix
            known = prefixes.get(prefix)
            if known is None:
                known = prefixes[prefix] = (len(prefixes), _whole(prefix))
            table.prefix_number, table.prefix_tokens = known
            stage = call.stage
            numbers = known_stages.get(stage)
            if numbers is None:
                numbers = known_stages[stage] = self._numbers(stage, database)
            table.histories, table.any_history, table.own_history, first_visit = numbers
            visit = visits[index]
            table.remaining = first_visit + (visit if visit < MOST_VISITS else MOST_VISITS)
            table.starts_s = starts[index]
            table.mean_start_s = mean_starts[index]
            tables.append(table)
        return tables

    def _numbers(self, stage: str, database: str) -> _Numbers:
        """Of a stage's histories: those of its answers, of these that over all databases and that
        for this one, and that after its first visit."""
        every = self.history_number(stage, ANY_DATABASE)
        own = self.history_number(stage, database)
        histories = (every,) if own == every else (every, own)
        return histories, every, own, self.remaining_number(stage, 0)


def _whole(prefix: Prefix) -> int:
    if any(tokens <= 0 for _, tokens in prefix):
        return -1
    return sum(tokens for _, tokens in prefix)


def _critical_path(query: Query, costs_s: list[float]) -> float:
    ends: list[float] = []
    for call, cost in zip(query.calls, costs_s, strict=True):
        start = 0.0
        for need in call.needs:
            if ends[need] > start:
                start = ends[need]
        ends.append(start + cost)
    return max(ends)
