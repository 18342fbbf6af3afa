"""What people look at: queries with their requests, instances, tenants; read without any lock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, func, select

from hexprefect.scheduling import Decision
from hexprefect.store import tables
from hexprefect.store.load import view_of
from hexprefect.store.values import InstanceView, UnknownQuery

Record = dict[str, Any]


def instance_views(connection: Connection) -> dict[str, InstanceView]:
    """Every instance in the store by name, in ascending order."""
    rows = connection.execute(select(tables.instances).order_by(tables.instances.c.name))
    return {row.name: view_of(row._asdict()) for row in rows}


def tenant_records(connection: Connection) -> list[Record]:
    """Every tenant, by name."""
    rows = connection.execute(select(tables.tenants).order_by(tables.tenants.c.name))
    return [row._asdict() for row in rows]


def recent_queries(connection: Connection, *, most: int = 20) -> list[Record]:
    """The queries that arrived last, newest first, without their answers."""
    query = tables.queries.c
    columns = [column for column in query if column.name != "answer"]
    rows = connection.execute(
        select(*columns).order_by(query.arrived_at.desc(), query.id.desc()).limit(most)
    )
    return [row._asdict() for row in rows]


def query_record(connection: Connection, query_id: str) -> Record:
    """One query with its answer and every request, in the order in which they were submitted.

    Raises:
        UnknownQuery: when there is none of this id.
    """
    row = connection.execute(select(tables.queries).where(tables.queries.c.id == query_id)).first()
    if row is None:
        raise UnknownQuery(
            f"No query {query_id!r} in the store.", remedy="See `hexprefect queries list`."
        )
    request = tables.requests.c
    requests = connection.execute(
        select(tables.requests)
        .where(request.query_id == query_id)
        .order_by(request.submitted_at, request.id)
    )
    return {**row._asdict(), "requests": [entry._asdict() for entry in requests]}


def stage_records(record: Record) -> list[Record]:
    """The requests of `query_record` as a person follows them: where, how long, how much."""
    return [
        {
            "stage": request["stage"],
            "branch": request["branch"],
            "request_id": request["id"],
            "state": request["state"],
            "instance": request["instance"],
            "waited_s": _between(request["ready_at"], request["started_at"]),
            "ran_s": _between(request["started_at"], request["ended_at"]),
            "budget_s": round(request["budget_s"], 3),
            "predicted_s": round(request["completion_us"] / 1e6, 3),
            "input_tokens": request["actual_input_tokens"],
            "output_tokens": request["actual_output_tokens"],
            "cached_tokens": request["cached_tokens"],
            "attempt": request["attempt"],
            "error": request["error"],
        }
        for request in record["requests"]
    ]


def decisions_of(connection: Connection, query_id: str) -> list[Record]:
    """Every dispatch of a query: what was known of each instance, and which was chosen."""
    rows = connection.execute(
        select(
            tables.decisions.c.request_id,
            tables.requests.c.stage,
            tables.decisions.c.made_at,
            tables.decisions.c.why,
            tables.decisions.c.record,
        )
        .join(tables.requests)
        .where(tables.requests.c.query_id == query_id)
        .order_by(tables.decisions.c.id)
    )
    return [{**row._asdict(), "record": Decision.from_record(row.record)} for row in rows]


def open_request_states(connection: Connection, process: str) -> dict[str, str]:
    """The requests that a process has waiting, admitted or running, and which of these each is."""
    rows = connection.execute(
        select(tables.requests.c.id, tables.requests.c.state).where(
            tables.requests.c.owner == process,
            tables.requests.c.state.in_(tables.OPEN_STATES),
        )
    )
    return {row.id: row.state for row in rows}


def request_counts(connection: Connection) -> dict[str, int]:
    """How many requests are in each state (law 1: they sum to all that were submitted)."""
    rows = connection.execute(
        select(tables.requests.c.state, func.count().label("number")).group_by(
            tables.requests.c.state
        )
    )
    counted = {row.state: row.number for row in rows}
    return {state: counted.get(state, 0) for state in tables.REQUEST_STATES}


def _between(start: float | None, end: float | None) -> float | None:
    if start is None or end is None:
        return None
    return round(max(0.0, end - start), 3)
