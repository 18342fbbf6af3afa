"""What a simulation keeps about the queries and requests in flight."""

from __future__ import annotations

from hexprefect.simulator.engine_values import EngineJob
from hexprefect.simulator.workload import Call, Query


class QueryRun:
    """A query that is being served."""

    __slots__ = (
        "arrived_at",
        "attained_s",
        "deadline",
        "left",
        "missing",
        "number",
        "query",
        "standalone_s",
    )

    def __init__(
        self, number: int, query: Query, *, arrived_at: float, deadline: float, standalone_s: float
    ) -> None:
        self.number = number
        self.query = query
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.standalone_s = standalone_s
        """Predicted from finished queries, not the query's own."""
        self.left = len(query.calls)
        """Calls that have not finished."""
        self.missing = [len(call.needs) for call in query.calls]
        """Needs of each call that have not finished; -1 once it was submitted."""
        self.attained_s = 0.0


class Request(EngineJob):
    """A call that has been submitted: what the engine sees, and what the policy knows."""

    __slots__ = (
        "admitted_at",
        "cached_tokens",
        "completion_s",
        "entry",
        "index",
        "instance",
        "kv_reserved",
        "kv_tokens",
        "last_chance",
        "mean_s",
        "number",
        "passed_over",
        "predicted_tokens",
        "ready_at",
        "remaining_s",
        "run",
        "work_s",
    )

    def __init__(
        self, number: int, run: QueryRun, index: int, call: Call, predicted: float, ready_at: float
    ) -> None:
        super().__init__(call.input_tokens, call.output_tokens, call.prefix)
        self.number = number
        self.run = run
        self.index = index
        self.predicted_tokens = predicted
        """Length of the answer, as the policy expects it."""
        self.ready_at = ready_at
        self.admitted_at = 0.0
        self.instance = -1
        self.completion_s = 0.0
        """`t_comp` on the appointed instance."""
        self.work_s = 0.0
        """What it adds to the instance's `t_queue` until it has finished."""
        self.mean_s = 0.0
        """`t̄`."""
        self.remaining_s = 0.0
        """Predicted work left of the query, this request included."""
        self.last_chance = 0.0
        self.cached_tokens = 0
        """Believed to be cached on the appointed instance."""
        self.kv_tokens = call.input_tokens + round(predicted)
        self.kv_reserved = 0
        self.passed_over = 0
        self.entry: Entry | None = None
        """Its place in the queue while it waits."""


Entry = tuple[int, float, float, int, Request]
"""A request's place in a queue: `(late, key, ready_at, number, request)`."""
