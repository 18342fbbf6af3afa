"""What a simulation keeps about the queries and requests in flight."""

from __future__ import annotations

from hexprefect.simulator.engine_values import EngineJob
from hexprefect.simulator.tables import CallTable, QueryTable
from hexprefect.simulator.workload import Query


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
        "slo_s",
        "standalone_s",
        "table",
    )

    def __init__(
        self,
        number: int,
        table: QueryTable,
        *,
        arrived_at: float,
        deadline: float,
        standalone_s: float,
    ) -> None:
        self.number = number
        self.table = table
        self.query: Query = table.query
        self.arrived_at = arrived_at
        self.deadline = deadline
        self.slo_s = deadline - arrived_at
        self.standalone_s = standalone_s
        """Predicted from finished queries, not the query's own."""
        self.left = len(table.calls)
        """Calls that have not finished."""
        self.missing = list(table.missing)
        """Needs of each call that have not finished."""
        self.attained_s = 0.0


class Request(EngineJob):
    """A call that has been submitted: what the engine sees, and what the policy knows."""

    __slots__ = (
        "admitted_at",
        "cached_tokens",
        "call",
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

    # What the policy and the engine write before they read it has no value at first: a request is
    # made for each of millions of calls, and half of its fields would be written twice.
    admitted_at: float
    instance: int
    completion_s: float
    """`t_comp` on the appointed instance."""
    cached_tokens: int
    """Believed to be cached on the appointed instance."""
    work_s: float
    """What it adds to the instance's `t_queue` until it has finished."""
    mean_s: float
    """`t̄`."""
    remaining_s: float
    """Predicted work left of the query, this request included."""
    last_chance: float
    kv_tokens: int
    """Of its prompt and its predicted answer."""
    kv_reserved: int

    def __init__(
        self, number: int, run: QueryRun, call: CallTable, predicted: float, ready_at: float
    ) -> None:
        # As `EngineJob.__init__`, less what the engine writes when the prompt begins.
        self.input_tokens = call.input_tokens
        self.output_tokens = call.output_tokens
        self.prefix = call.prefix
        self.generated = 0
        self.pinned = ()
        self.number = number
        self.run = run
        self.call = call
        self.index = call.index
        self.predicted_tokens = predicted
        """Length of the answer, as the policy expects it."""
        self.ready_at = ready_at
        self.passed_over = 0
        self.entry: Entry | None = None
        """Its place in the queue while it waits."""


Entry = tuple[float, float, int, Request]
"""A request's place in a queue: `(key, ready_at, number, request)`."""
