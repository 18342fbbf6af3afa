"""What a policy knows: histories of finished requests and queries, never the trace.

The rules are those of `scheduling.prediction` and `scheduling.remaining`, which tests hold this to
bit for bit. Histories are kept in lists by the numbers of `Tables`, and change in place: a new
history value for each finished request would cost more than the simulated engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hexprefect.scheduling import Profile
from hexprefect.scheduling.occupancy import completion_seconds_of
from hexprefect.scheduling.prediction import DEFAULT_OUTPUT_TOKENS, ENOUGH
from hexprefect.scheduling.prediction import MEMORY as MOST_REQUESTS
from hexprefect.scheduling.remaining import MEMORY as MOST_FINISHED
from hexprefect.scheduling.remaining import RemainingHistory
from hexprefect.simulator.facts import expected_output_tokens
from hexprefect.simulator.tables import VISITS, CallTable, QueryTable, Tables
from hexprefect.simulator.workload import Query


class Knowledge:
    """Predictions, learned as requests and queries finish.

    Args:
        profiles: of the cluster's instances; the mean cost `t̄` is over them.
        expected: output tokens of a stage of which nothing has finished; the published means of the
            reference's stages when left out.
        tables: of the queries, where several simulations on the same profiles share them.
    """

    def __init__(
        self,
        profiles: Sequence[Profile],
        expected: Mapping[str, float] | None = None,
        *,
        tables: Tables | None = None,
    ) -> None:
        self._tables = Tables(profiles) if tables is None else tables
        self._expected = expected_output_tokens() if expected is None else expected
        self.mean_output_s = self._tables.mean[2]
        """`b` of the mean profile."""
        self.standalone = RemainingHistory()
        """Of whole queries."""
        self.finished: list[int] = []
        """Finished requests of each history, as far as they are told apart."""
        self.answers: list[float] = []
        """Mean answer of each history; what is expected where nothing has finished."""
        self._left_known: list[int] = []
        """Finished queries of each stage and visit, as far as they are told apart."""
        self._left_s: list[float] = []

    # -- what policies ask ---------------------------------------------------------------------

    def predicted_left(self, number: int) -> float:
        """`predicted_remaining_seconds` of a stage and visit, by the number in its table."""
        known = self._left_known
        while not known[number]:
            if not number % VISITS:
                return 0.0
            number -= 1
        return self._left_s[number]

    def output_tokens(self, stage: str, database: str) -> float:
        """What answer to expect of a call, before it runs."""
        tables = self._tables
        own, every = tables.history_number(stage, database), tables.history_number(stage, "")
        self._grow()
        return self.answers[own if self.finished[own] >= ENOUGH else every]

    def mean_seconds(self, input_tokens: int, output_tokens: float) -> float:
        """`t̄` of a request."""
        return completion_seconds_of(self._tables.mean, input_tokens, output_tokens)

    def remaining_after(self, stage: str, visit: int) -> float:
        """Predicted seconds that a query still needs after a call."""
        number = self._tables.remaining_number(stage, visit)
        self._grow()
        return self.predicted_left(number)

    # -- what is learned -----------------------------------------------------------------------

    def table(self, query: Query) -> QueryTable:
        """The query's table, with room for what will be learned of its calls."""
        table = self._tables.of(query)
        self._grow()
        return table

    def request_finished(self, query: Query, index: int) -> None:
        """Learn the length of a finished call's answer."""
        self.learn_answer(self.table(query).calls[index])

    def learn_answer(self, call: CallTable) -> None:
        """`StageHistory.after`, for the call's stage and for its stage and database."""
        finished, answers = self.finished, self.answers
        tokens = call.answer_tokens
        for number in call.histories:
            count = finished[number]
            # What was expected of the stage counts for nothing once a request has finished.
            mean = answers[number] if count else 0.0
            if count < MOST_REQUESTS:
                finished[number] = count = count + 1
            answers[number] = mean + 1.0 / count * (tokens - mean)

    def query_finished(self, query: Query) -> None:
        """Learn what was left after each call of a finished query, and how long it was alone."""
        table = self.table(query)
        self.standalone = self.standalone.after(table.whole_s)
        known = self._left_known
        means = self._left_s
        for call, seconds in zip(table.calls, table.after_s, strict=True):
            # `RemainingHistory.after`
            number = call.remaining
            count = known[number]
            if count < MOST_FINISHED:
                known[number] = count = count + 1
            mean = means[number]
            means[number] = mean + 1.0 / count * (seconds - mean)

    def alone_seconds(self, query: Query) -> float:
        """The query's true duration alone, of which SLOs are multiples. Not for policies."""
        return self._tables.of(query).alone_s

    def _grow(self) -> None:
        """Make room for histories that have been numbered since, here or by another simulation."""
        histories = self._tables.histories
        missing = len(histories) - len(self.finished)
        if missing:
            self.finished += [0] * missing
            for stage, _ in list(histories)[-missing:]:
                self.answers.append(self._expected.get(stage) or DEFAULT_OUTPUT_TOKENS)
        missing = VISITS * len(self._tables.stages) - len(self._left_known)
        if missing:
            self._left_known += [0] * missing
            self._left_s += [0.0] * missing
