"""What a transaction has changed and not written yet, and the statements that write it.

Each kind of change is kept as the parameters of one statement, so that any number of them costs one
execution. A request that is new in the transaction is changed in its row, before that is inserted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, insert, text
from sqlalchemy.dialects import postgresql, sqlite

from hexprefect.scheduling import Decision
from hexprefect.scheduling.prediction import StageHistory
from hexprefect.scheduling.remaining import RemainingHistory
from hexprefect.store import statements, tables
from hexprefect.store.load import InstanceLoad

Row = dict[str, Any]
"""The columns of one row, by name."""


class Changes:
    """The changes of one transaction that the tables do not show yet."""

    def __init__(self, connection: Connection, *, now: float) -> None:
        self._connection = connection
        self._now = now
        self.new: dict[str, Row] = {}
        """Requests to insert, by id."""
        self.admitted: list[Row] = []
        """Parameters of `statements.ADMIT`."""
        self.learned: dict[tuple[str, str], StageHistory] = {}
        """The newest history of each `(stage, database)` in which a request was counted."""
        self.learned_remaining: dict[tuple[str, int], RemainingHistory] = {}
        """The newest history of each `(stage, visit)` in which a query was counted."""
        self.woken: set[str] = set()
        """Other processes, of which a request was admitted."""
        self._passed_over: list[Row] = []
        self._appointed: dict[str, Row] = {}
        self._ended: list[Row] = []
        self._decisions: list[Row] = []
        self._attempts: list[Row] = []

    def appoint(self, row: Row) -> None:
        """A request is on the queue that its row names; or on none."""
        if row["id"] in self.new:
            return
        self._appointed[row["id"]] = {
            "key": row["id"],
            "new_instance": row["instance"],
            "new_completion_us": row["completion_us"],
            "new_latest_start": row["latest_start"],
            "new_order_key": row["order_key"],
            "new_work_us": row["work_us"],
            "new_late": row["late"],
        }

    def admit(
        self, row: Row, instance: str, *, state: str, attempt: int, started_at: float | None
    ) -> None:
        """A request holds a slot of `instance` from now on.

        Args:
            state: "running" when its own process admitted it, else "admitted".
            started_at: epoch seconds; `None` for one that is only admitted.
        """
        if row["id"] in self.new:
            row.update(state=state, attempt=attempt, admitted_at=self._now, started_at=started_at)
        else:
            self.admitted.append(
                {
                    "key": row["id"],
                    "new_state": state,
                    "new_attempt": attempt,
                    "at": self._now,
                    "start": started_at,
                }
            )

    def pass_over(self, request_id: str) -> None:
        """A request did not fit when one behind it was admitted."""
        if request_id in self.new:
            self.new[request_id]["passed_over"] += 1
        else:
            self._passed_over.append({"key": request_id})

    def decide(self, request_id: str, decision: Decision, *, why: str) -> None:
        """An instance was chosen for a request."""
        self._decisions.append(
            {
                "request_id": request_id,
                "made_at": self._now,
                "why": why,
                "record": decision.as_record(),
            }
        )

    def end(self, row: Row, **columns: Any) -> None:
        """A request has ended in the state of its row; `columns` as in `statements.END`."""
        self._ended.append(
            {"key": row["id"], "new_state": row["state"], "at": self._now, **columns}
        )

    def end_attempt(self, **columns: Any) -> None:
        """An attempt has ended."""
        self._attempts.append({"error": None, **columns})

    def write_updates(self) -> None:
        """Write what was changed of stored requests: before they are read from the table."""
        for statement, rows in (
            (statements.APPOINT, list(self._appointed.values())),
            (statements.END, self._ended),
        ):
            if rows:
                self._connection.execute(statement, rows)
        self._appointed.clear()
        self._ended.clear()

    def write(self, loads: Iterable[InstanceLoad]) -> None:
        """Write everything, the changed ones of `loads` included; the caller commits."""
        run = self._connection.execute
        if self.new:
            run(insert(tables.requests), list(self.new.values()))
            self.new.clear()
        self.write_updates()
        for statement, rows in (
            (statements.ADMIT, self.admitted),
            (statements.PASS_OVER, self._passed_over),
            (statements.DECIDED, self._decisions),
            (statements.ATTEMPTED, self._attempts),
        ):
            if rows:
                run(statement, rows)
                rows.clear()
        dirty = [load for load in loads if load.dirty]
        if dirty:
            run(statements.LOAD, [load.as_update() for load in dirty])
            for load in dirty:
                load.dirty = False
        if self.learned:
            self._write_history()
            self.learned.clear()
        if self.learned_remaining:
            self._write_remaining()
            self.learned_remaining.clear()
        if self.woken and self._connection.dialect.name == "postgresql":
            run(
                text("SELECT pg_notify('hexprefect', :owner)"),
                [{"owner": owner} for owner in sorted(self.woken)],
            )

    def _write_history(self) -> None:
        self._upsert(
            tables.stage_history,
            [
                {
                    "stage": stage,
                    "database": database,
                    "count": learned.count,
                    "input_tokens": learned.input_tokens,
                    "output_tokens": learned.output_tokens,
                }
                for (stage, database), learned in self.learned.items()
            ],
        )

    def _write_remaining(self) -> None:
        self._upsert(
            tables.remaining_history,
            [
                {
                    "stage": stage,
                    "visit": visit,
                    "queries": learned.queries,
                    "seconds": learned.seconds,
                }
                for (stage, visit), learned in self.learned_remaining.items()
            ],
        )

    def _upsert(self, table: Table, rows: list[Row]) -> None:
        """Insert rows, or replace those with the same primary key."""
        dialect: Any = postgresql if self._connection.dialect.name == "postgresql" else sqlite
        statement = dialect.insert(table)
        kept = {column.name: statement.excluded[column.name] for column in table.columns}
        keys = [column.name for column in table.primary_key]
        self._connection.execute(
            statement.on_conflict_do_update(
                index_elements=keys,
                set_={name: value for name, value in kept.items() if name not in keys},
            ),
            rows,
        )
