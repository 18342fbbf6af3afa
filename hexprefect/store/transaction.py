"""One scheduling transaction: the instances' load read once, decided on in memory, written once.

A transaction holds the scheduling lock, so nobody else changes what it has read. Transitions put
requests into it; `settle` then admits, by the pure functions of `hexprefect.scheduling`, whatever
has room; `flush` writes. Several transitions of one process may share a transaction (group commit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, insert, select, text
from sqlalchemy.dialects import postgresql, sqlite

from hexprefect.scheduling import (
    Decision,
    RequestSize,
    Waiting,
    admit,
    dispatch,
    latest_start,
    queue_order,
)
from hexprefect.scheduling.prediction import StageHistory
from hexprefect.scheduling.reappointment import Movable, choose_reappointment
from hexprefect.store import statements, tables
from hexprefect.store.engine import read_together
from hexprefect.store.load import InstanceLoad
from hexprefect.store.values import DispatchSettings, Grant

LOOK_AHEAD = 16
"""Waiting requests read beyond the free slots: enough to pass over a few that do not fit."""

Row = dict[str, Any]


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
        found: Found,
    ) -> None:
        self.connection = connection
        self.now = now
        self.process = process
        self.history = history
        self.granted: list[Grant] = []
        """Requests of this process that run from now on."""
        self.woken: set[str] = set()
        """Other processes, of which a request was admitted."""
        self.settings = found.settings
        """The newest α, which every dispatch of this transaction uses."""
        self.instances = _loads(found.instances)
        """Every instance by name, in ascending order of the name."""
        self._queries = dict(found.queries)
        self._requests = dict(found.requests)
        self._touched: set[str] = set()
        self._new: dict[str, Row] = {}
        self._seen: dict[str, Row] = {}
        self._admitted: list[Row] = []
        self._started_us: dict[str, int] = {}
        """Work started on each instance that the table does not show yet."""
        self._passed_over: list[Row] = []
        self._appointed: dict[str, Row] = {}
        self._ended: list[Row] = []
        self._decisions: list[Row] = []
        self._attempts: list[Row] = []
        self._learned: dict[tuple[str, str], StageHistory] = {}

    # -- what is read ---------------------------------------------------------------------------

    def read_instances_anew(self) -> None:
        """After one was added or removed; what was changed in memory must be flushed before."""
        self.instances = _loads(
            [row._asdict() for row in self.connection.execute(statements.INSTANCES)]
        )

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
        self._new[row["id"]] = self._seen[row["id"]] = row

    def appoint(self, row: Row, *, why: str, avoid: frozenset[str] = frozenset()) -> str | None:
        """Dispatch a waiting request that is on no instance's queue.

        Args:
            row: its columns, as in the table; changed in place.
            why: recorded with the decision.
            avoid: instances to use only when there is no other.

        Returns:
            The instance's name, or `None` when none can take it now.
        """
        size = RequestSize(
            input_tokens=row["input_tokens"],
            output_tokens=row["predicted_output_tokens"],
            prefix=tuple((key, tokens) for key, tokens in row["prefix"]),
        )
        eligible = self._eligible(row["kv_tokens"], avoid)
        if not eligible:
            row.update(instance=None, completion_us=0)
            self._write_appointment(row)
            return None
        completion = [load.completion_seconds(size) for load in eligible]
        settings = self.settings
        decision = dispatch(
            [load.name for load in eligible],
            completion,
            [load.queue_delay_s for load in eligible],
            alpha=settings.alpha,
            policy=settings.policy,
            beta=settings.beta,
        )
        load = self.instances[decision.instance]
        chosen_s = completion[[entry.name for entry in eligible].index(decision.instance)]
        self._enqueue(row, load, chosen_s)
        self._record(row["id"], decision, why)
        return load.name

    def release(self, instance: str | None, *, completion_us: int, kv_tokens: int) -> None:
        """A request that was admitted or running on `instance` is so no more."""
        if instance is None:
            return
        load = self.instances[instance]
        load.occupied -= 1
        load.reserved_kv_tokens -= kv_tokens
        load.backlog_us -= completion_us
        load.dirty = True
        self._touched.add(instance)

    def withdraw(self, instance: str | None, *, completion_us: int) -> None:
        """A request that was waiting in the queue of `instance` leaves it."""
        if instance is None:
            return
        load = self.instances[instance]
        load.waiting -= 1
        load.backlog_us -= completion_us
        load.dirty = True
        self._touched.add(instance)

    def touch(self, instance: str) -> None:
        """Let `settle` look whether `instance` has room for somebody."""
        self._touched.add(instance)

    def record_attempt(self, **columns: Any) -> None:
        """An attempt that has ended."""
        self._attempts.append({"error": None, **columns})

    def learn(self, stage: str, database: str, *, input_tokens: int, output_tokens: int) -> None:
        """Count a finished request into the history of its stage."""
        for key in {(stage, database), (stage, "")}:
            before = self._learned.get(key) or self.history.get(key) or StageHistory()
            after = before.after(input_tokens=input_tokens, output_tokens=output_tokens)
            self._learned[key] = self.history[key] = after

    def end_request(self, row: Row, **columns: Any) -> None:
        """Give a request its result or its error; its state in `row` is the new one."""
        self._ended.append({"key": row["id"], "new_state": row["state"], "at": self.now, **columns})

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

    # -- what follows ---------------------------------------------------------------------------

    def settle(self) -> None:
        """Admit, on every instance whose load changed, the requests that it has room for."""
        touched = [self.instances[name] for name in sorted(self._touched & set(self.instances))]
        serving = [load for load in touched if load.serves]
        queues = self._queues([load for load in serving if load.capacity > load.occupied])
        for load in serving:
            self._admit_on(load, queues.get(load.name, []))
        # Only what still waits, once every queue has used its own room, is taken elsewhere.
        for load in serving:
            self._take_over(load)
        self._touched.clear()

    def flush(self) -> None:
        """Write everything; the caller commits."""
        run = self.connection.execute
        if self._new:
            run(insert(tables.requests), list(self._new.values()))
            self._new.clear()
        self.write_changes()
        self._started_us.clear()
        for statement, rows in (
            (statements.ADMIT, self._admitted),
            (statements.PASS_OVER, self._passed_over),
            (statements.DECIDED, self._decisions),
            (statements.ATTEMPTED, self._attempts),
        ):
            if rows:
                run(statement, rows)
                rows.clear()
        dirty = [load for load in self.instances.values() if load.dirty]
        if dirty:
            run(statements.LOAD, [load.as_update() for load in dirty])
            for load in dirty:
                load.dirty = False
        if self._learned:
            self._write_history()
            self._learned.clear()
        if self.woken and self.connection.dialect.name == "postgresql":
            run(
                text("SELECT pg_notify('hexprefect', :owner)"),
                [{"owner": owner} for owner in sorted(self.woken)],
            )

    # -- the parts of it ------------------------------------------------------------------------

    def _eligible(self, kv_tokens: int, avoid: frozenset[str]) -> list[InstanceLoad]:
        able = [load for load in self.instances.values() if load.can_hold(kv_tokens)]
        for wanted in (
            [load for load in able if load.state == "alive" and load.name not in avoid],
            [load for load in able if load.state == "alive"],
            [load for load in able if load.state == "suspect" and load.name not in avoid],
            [load for load in able if load.state == "suspect"],
        ):
            if wanted:
                return wanted
        return []

    def _enqueue(self, row: Row, load: InstanceLoad, completion_s: float) -> None:
        start_by = latest_start(
            ready_at=row["ready_at"], budget_s=row["budget_s"], completion_s=completion_s
        )
        row.update(
            instance=load.name,
            completion_us=round(completion_s * 1e6),
            latest_start=start_by,
            order_key=start_by,
        )
        load.waiting += 1
        load.backlog_us += row["completion_us"]
        load.dirty = True
        self._touched.add(load.name)
        self._write_appointment(row)

    def _write_appointment(self, row: Row) -> None:
        if row["id"] in self._new:
            return
        self._appointed[row["id"]] = {
            "key": row["id"],
            "new_instance": row["instance"],
            "new_completion_us": row["completion_us"],
            "new_latest_start": row["latest_start"],
            "new_order_key": row["order_key"],
        }

    def _record(self, request_id: str, decision: Decision, why: str) -> None:
        self._decisions.append(
            {
                "request_id": request_id,
                "made_at": self.now,
                "why": why,
                "record": decision.as_record(),
            }
        )

    def write_changes(self) -> None:
        """Write what was changed of stored requests: before they are read from the table."""
        for statement, rows in (
            (statements.APPOINT, list(self._appointed.values())),
            (statements.END, self._ended),
        ):
            if rows:
                self.connection.execute(statement, rows)
        self._appointed.clear()
        self._ended.clear()

    def _look_up(
        self, statement: Mapping[bool, Select[Any]], known: dict[str, Any], key: str
    ) -> None:
        postgresql = self.connection.dialect.name == "postgresql"
        for row in self.connection.execute(statement[postgresql], {"ids": [key]}):
            known[row.id] = row._asdict()

    def _queues(self, loads: Sequence[InstanceLoad]) -> dict[str, list[Row]]:
        """The head of each instance's queue, new requests of this transaction included."""
        queues: dict[str, list[Row]] = {load.name: [] for load in loads if load.waiting > 0}
        for row in self._new.values():
            if row["state"] == "waiting" and row["instance"] in queues:
                queues[row["instance"]].append(row)
        gone = {row["key"] for row in self._admitted}
        stored = [load for load in loads if load.waiting > len(queues.get(load.name, ()))]
        if not stored:
            return queues
        reads = [
            (
                statements.HEADS,
                {
                    "queue": load.name,
                    "most": load.capacity - load.occupied + LOOK_AHEAD + len(gone),
                },
            )
            for load in stored
        ]
        found = read_together(self.connection, reads, after=self.write_changes)
        for load, rows in zip(stored, found, strict=True):
            queues[load.name] += [row for row in rows if row["id"] not in gone]
        return queues

    def _admit_on(self, load: InstanceLoad, queue: Sequence[Row]) -> None:
        rows = {row["id"]: row for row in queue}
        free = load.capacity - load.occupied
        waiting = sorted(
            (
                Waiting(
                    id=row["id"],
                    order_key=row["order_key"],
                    ready_at=row["ready_at"],
                    kv_tokens=row["kv_tokens"],
                    passed_over=row["passed_over"],
                )
                for row in rows.values()
            ),
            key=queue_order,
        )
        admission = admit(waiting, free_slots=free, free_kv_tokens=load.free_kv_tokens)
        for request_id in admission.admitted:
            self._start(rows[request_id], load)
        for request_id in admission.passed_over:
            if request_id in self._new:
                self._new[request_id]["passed_over"] += 1
            else:
                self._passed_over.append({"key": request_id})

    def _start(self, row: Row, load: InstanceLoad) -> None:
        self.forget_request(row["id"])
        own = row["owner"] == self.process
        started = self.now if own else None
        attempt = row["attempt"] + 1
        state = "running" if own else "admitted"
        if row["id"] in self._new:
            row.update(state=state, attempt=attempt, admitted_at=self.now, started_at=started)
        else:
            self._admitted.append(
                {
                    "key": row["id"],
                    "new_state": state,
                    "new_attempt": attempt,
                    "at": self.now,
                    "start": started,
                }
            )
        self._started_us[load.name] = self._started_us.get(load.name, 0) + row["completion_us"]
        load.waiting -= 1
        load.occupied += 1
        load.reserved_kv_tokens += row["kv_tokens"]
        load.serve_prefix(row["prefix"])
        load.dirty = True
        if own:
            self.granted.append(grant_of({**row, "attempt": attempt}, load.name, self.now))
        else:
            self.woken.add(row["owner"])

    def _take_over(self, load: InstanceLoad) -> None:
        """Fill free slots with what waits elsewhere and would end clearly sooner here."""
        while load.capacity > load.occupied and load.waiting == 0 and load.state == "alive":
            if not any(other.waiting > 0 for other in self.instances.values() if other is not load):
                return
            rows = self._waiting_elsewhere(load)
            chosen = choose_reappointment(
                [
                    Movable(
                        id=row["id"],
                        wait_there_s=row["wait_there_s"],
                        completion_there_s=row["completion_us"] / 1e6,
                        completion_here_s=load.completion_seconds(_size(row)),
                    )
                    for row in rows
                ]
            )
            if chosen is None:
                return
            self._move(next(row for row in rows if row["id"] == chosen), load)

    def _waiting_elsewhere(self, load: InstanceLoad) -> list[Row]:
        self.write_changes()
        request = tables.requests.c
        held = self.connection.execute(
            select(request.instance, func.sum(request.completion_us))
            .where(request.state.in_(tables.HOLDING_STATES))
            .group_by(request.instance)
        )
        # A running request is half done on average.
        ahead = {name: int(total or 0) // 2 for name, total in held}
        gone = {row["key"] for row in self._admitted}
        for name, started_us in self._started_us.items():
            ahead[name] = ahead.get(name, 0) + started_us
        stored = self.connection.execute(
            select(*statements.QUEUE_COLUMNS)
            .where(request.state == "waiting", request.instance != load.name)
            .order_by(request.order_key, request.ready_at, request.id)
            .limit(LOOK_AHEAD + len(gone))
        )
        rows: list[Row] = []
        for stored_row in stored:
            if stored_row.id in gone:
                continue
            row = stored_row._asdict()
            other = self.instances[row["instance"]]
            before = ahead.get(other.name, 0)
            row["wait_there_s"] = before / 1e6 / other.capacity
            ahead[other.name] = before + row["completion_us"]
            if load.can_hold(row["kv_tokens"]) and load.fits(row["kv_tokens"]):
                rows.append(row)
        return rows

    def _move(self, row: Row, load: InstanceLoad) -> None:
        other = self.instances[row["instance"]]
        other.waiting -= 1
        other.backlog_us -= row["completion_us"]
        other.dirty = True
        completion_s = load.completion_seconds(_size(row))
        why = f"{load.name} was idle and would end it sooner than {other.name}"
        settings = self.settings
        # α = 1 over these two times is the comparison that was made: so the move replays, too.
        there_s = row["wait_there_s"] + row["completion_us"] / 1e6
        decision = dispatch(
            [load.name, other.name],
            [completion_s, there_s],
            [0.0, 0.0],
            alpha=1.0,
            policy="normalised",
            beta=settings.beta,
        )
        self._enqueue(row, load, completion_s)
        self._record(row["id"], decision, why)
        self.write_changes()
        self._start(row, load)

    def _write_history(self) -> None:
        dialect: Any = postgresql if self.connection.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(tables.stage_history)
        self.connection.execute(
            statement.on_conflict_do_update(
                index_elements=["stage", "database"],
                set_={
                    "count": statement.excluded.count,
                    "input_tokens": statement.excluded.input_tokens,
                    "output_tokens": statement.excluded.output_tokens,
                },
            ),
            [
                {
                    "stage": stage,
                    "database": database,
                    "count": learned.count,
                    "input_tokens": learned.input_tokens,
                    "output_tokens": learned.output_tokens,
                }
                for (stage, database), learned in self._learned.items()
            ],
        )


def _loads(rows: Sequence[Row]) -> dict[str, InstanceLoad]:
    return {row["name"]: InstanceLoad.from_row(row) for row in rows}


def _size(row: Mapping[str, Any]) -> RequestSize:
    return RequestSize(
        input_tokens=row["input_tokens"],
        output_tokens=row["predicted_output_tokens"],
        prefix=tuple((key, tokens) for key, tokens in row["prefix"]),
    )


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
        completion_s=row["completion_us"] / 1e6,
    )
