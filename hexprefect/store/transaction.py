"""One scheduling transaction: the instances' load read once, decided on in memory, written once.

A transaction holds the scheduling lock, so nobody else changes what it has read. Transitions put
requests into it (`transitions`, `appointment`); then whatever has room is admitted (`settlement`);
`flush` writes. Several transitions of one process may share a transaction (group commit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Select

from hexprefect.scheduling.occupancy import Coefficients, coefficients, mean_profile
from hexprefect.scheduling.prediction import StageHistory
from hexprefect.scheduling.remaining import MOST_VISITS, RemainingHistory
from hexprefect.store import statements
from hexprefect.store.changes import Changes, Row
from hexprefect.store.load import InstanceLoad
from hexprefect.store.values import DispatchSettings, Grant


@dataclass(frozen=True, slots=True)
class Found:
    """What a transaction reads together with taking the lock."""

    settings: DispatchSettings
    instances: Sequence[Row]
    queries: Mapping[str, Row]
    """State, owner and reason of the queries that the submissions name; by id."""
    requests: Mapping[str, Row | None]
    """The requests that the transitions name; `None` for one that does not exist."""


class Transaction:
    """What one commit changes. Not thread-safe; lives for one database transaction."""

    def __init__(
        self,
        connection: Connection,
        *,
        now: float,
        process: str,
        history: dict[tuple[str, str], StageHistory],
        remaining: dict[tuple[str, int], RemainingHistory],
        found: Found,
    ) -> None:
        self.connection = connection
        self.now = now
        self.process = process
        self.history = history
        self.remaining = remaining
        """Work that queries had left after each visit of a stage, in seconds."""
        self.granted: list[Grant] = []
        """Requests of this process that run from now on."""
        self.settings = found.settings
        """The newest α, which every dispatch of this transaction uses."""
        self.instances = _loads(found.instances, self.settings)
        """Every instance by name, in ascending order of the name."""
        self.touched: set[str] = set()
        """Instances whose load has changed: somebody may have room there now."""
        self.changes = Changes(connection, now=now)
        """What is written by `flush`."""
        self._queries = dict(found.queries)
        self._requests = dict(found.requests)
        self._seen: dict[str, Row] = {}

    # -- what is read ---------------------------------------------------------------------------

    def read_instances_anew(self) -> None:
        """After one was added or removed; what was changed in memory must be flushed before."""
        self.instances = _loads(
            [row._asdict() for row in self.connection.execute(statements.INSTANCES)],
            self.settings,
        )
        self.__dict__.pop("mean_cost", None)

    @cached_property
    def mean_cost(self) -> Coefficients:
        """`c, a, b` of `t̄`, the mean cost over the instances that serve."""
        serving = [load.profile for load in self.instances.values() if load.serves]
        return coefficients(mean_profile(serving)) if serving else (0.0, 0.0, 0.0, 0.0)

    def query(self, query_id: str) -> Row | None:
        """State, owner and reason of a query, or `None`."""
        if query_id not in self._queries:
            self._look_up(statements.QUERIES, self._queries, query_id)
        return self._queries.get(query_id)

    def request(self, request_id: str) -> Row | None:
        """A request in the table, as far as ending it needs; or `None` when there is none."""
        if request_id not in self._requests:
            self.write_changes()
            self._requests[request_id] = None
            self._look_up(statements.REQUESTS, self._requests, request_id)
        return self._requests[request_id]

    def forget_query(self, query_id: str) -> None:
        """Its row has changed."""
        self._queries.pop(query_id, None)

    def forget_queries(self) -> None:
        """Rows of any of them may have changed."""
        self._queries.clear()

    def forget_request(self, request_id: str) -> None:
        """Its row has changed."""
        self._requests.pop(request_id, None)

    # -- what transitions do --------------------------------------------------------------------

    def add_request(self, row: Row) -> None:
        """A new request, still to be appointed; written by `flush`."""
        self.changes.new[row["id"]] = self._seen[row["id"]] = row

    def release(self, row: Row) -> None:
        """A request that was admitted or running is so no more."""
        if row["instance"] is not None:
            self.instances[row["instance"]].release(row)
            self.touched.add(row["instance"])

    def withdraw(self, row: Row) -> None:
        """A request that was waiting in an instance's queue leaves it."""
        if row["instance"] is not None:
            self.instances[row["instance"]].unqueue(row)
            self.touched.add(row["instance"])

    def touch(self, instance: str) -> None:
        """Let the settlement look whether `instance` has room for somebody."""
        self.touched.add(instance)

    def record_attempt(self, **columns: Any) -> None:
        """An attempt that has ended."""
        self.changes.end_attempt(**columns)

    def learn(self, stage: str, database: str, *, input_tokens: int, output_tokens: int) -> None:
        """Count a finished request into the history of its stage."""
        for key in {(stage, database), (stage, "")}:
            before = self.changes.learned.get(key) or self.history.get(key) or StageHistory()
            after = before.after(input_tokens=input_tokens, output_tokens=output_tokens)
            self.changes.learned[key] = self.history[key] = after

    def learn_remaining(self, stage: str, visit: int, seconds: float) -> None:
        """Count what a finished query had left after one of its requests."""
        key = (stage, min(visit, MOST_VISITS))
        after = self.remaining.get(key, RemainingHistory()).after(seconds)
        self.changes.learned_remaining[key] = self.remaining[key] = after

    def end_request(self, row: Row, **columns: Any) -> None:
        """Give a request its result or its error; its state in `row` is the new one."""
        self.changes.end(row, **columns)

    def row_of(self, request_id: str) -> Row | None:
        """The row of a request added or opened again in this transaction."""
        return self._seen.get(request_id)

    def reopened(self, row: Row) -> None:
        """A request that is in the table already waits again; still to be appointed."""
        self.forget_request(row["id"])
        self._seen[row["id"]] = row

    def closed(self, request_id: str, state: str) -> None:
        """A request has ended without a result: what this transaction granted it is void."""
        self.forget_request(request_id)
        self.granted = [grant for grant in self.granted if grant.request_id != request_id]
        if request_id in self._seen:
            self._seen[request_id]["state"] = state

    # -- its end --------------------------------------------------------------------------------

    def write_changes(self) -> None:
        """Write what was changed of stored requests: before they are read from the table."""
        self.changes.write_updates()

    def flush(self) -> None:
        """Write everything; the caller commits."""
        self.changes.write(self.instances.values())

    def _look_up(
        self, statement: Mapping[bool, Select[Any]], known: dict[str, Any], key: str
    ) -> None:
        postgresql = self.connection.dialect.name == "postgresql"
        for row in self.connection.execute(statement[postgresql], {"ids": [key]}):
            known[row.id] = row._asdict()


def _loads(rows: Sequence[Row], settings: DispatchSettings) -> dict[str, InstanceLoad]:
    return {row["name"]: InstanceLoad.from_row(row, slowdown=settings.slowdown) for row in rows}


def grant_of(row: Mapping[str, Any], instance: str, started_at: float) -> Grant:
    """The grant that a request's row stands for."""
    return Grant(
        request_id=row["id"],
        attempt=row["attempt"],
        instance=instance,
        submitted_at=row["submitted_at"],
        ready_at=row["ready_at"],
        admitted_at=row.get("admitted_at") or started_at,
        started_at=started_at,
        budget_s=row["budget_s"],
        latest_start=row["latest_start"],
        order_key=row["order_key"],
        completion_s=row["completion_us"] / 1e6,
    )
