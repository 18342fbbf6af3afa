"""The statements of a scheduling transaction, built once: SQLAlchemy then compiles each once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Select,
    String,
    any_,
    bindparam,
    insert,
    select,
    update,
)

from hexprefect.store import tables

QUEUE_COLUMNS = (
    tables.requests.c.id,
    tables.requests.c.query_id,
    tables.requests.c.owner,
    tables.requests.c.instance,
    tables.requests.c.order_key,
    tables.requests.c.ready_at,
    tables.requests.c.kv_tokens,
    tables.requests.c.passed_over,
    tables.requests.c.submitted_at,
    tables.requests.c.attempt,
    tables.requests.c.budget_s,
    tables.requests.c.latest_start,
    tables.requests.c.completion_us,
    tables.requests.c.work_us,
    tables.requests.c.deadline,
    tables.requests.c.remaining_s,
    tables.requests.c.late,
    tables.requests.c.input_tokens,
    tables.requests.c.predicted_output_tokens,
    tables.requests.c.prefix,
)

HEADS = (
    select(*QUEUE_COLUMNS)
    .where(
        tables.requests.c.instance == bindparam("queue"),
        tables.requests.c.state == "waiting",
    )
    .order_by(tables.requests.c.order_key, tables.requests.c.ready_at, tables.requests.c.id)
    .limit(bindparam("most"))
)

ADMIT = (
    update(tables.requests)
    .where(tables.requests.c.id == bindparam("key"))
    .values(
        state=bindparam("new_state"),
        attempt=bindparam("new_attempt"),
        admitted_at=bindparam("at"),
        started_at=bindparam("start"),
    )
)

PASS_OVER = (
    update(tables.requests)
    .where(tables.requests.c.id == bindparam("key"))
    .values(passed_over=tables.requests.c.passed_over + 1)
)

APPOINT = (
    update(tables.requests)
    .where(tables.requests.c.id == bindparam("key"))
    .values(
        instance=bindparam("new_instance"),
        completion_us=bindparam("new_completion_us"),
        latest_start=bindparam("new_latest_start"),
        order_key=bindparam("new_order_key"),
        work_us=bindparam("new_work_us"),
        late=bindparam("new_late"),
    )
)

LOAD = (
    update(tables.instances)
    .where(tables.instances.c.name == bindparam("key"))
    .values(
        state=bindparam("new_state"),
        reason=bindparam("new_reason"),
        changed_at=bindparam("new_changed_at"),
        backlog_us=bindparam("new_backlog_us"),
        waiting=bindparam("new_waiting"),
        occupied=bindparam("new_occupied"),
        reserved_kv_tokens=bindparam("new_reserved_kv_tokens"),
        held_prefixes=bindparam("new_held_prefixes", type_=tables.instances.c.held_prefixes.type),
        busy_until=bindparam("new_busy_until"),
        queued_us=bindparam("new_queued_us"),
        promised_until=bindparam("new_promised_until"),
        mean_uncached=bindparam("new_mean_uncached"),
        mean_output=bindparam("new_mean_output"),
        measured=bindparam("new_measured"),
        learned_depth=bindparam("new_learned_depth"),
    )
)

# Their keys are the database's to count: nobody asks for them.
DECIDED = insert(tables.decisions).inline()
ATTEMPTED = insert(tables.attempts).inline()

SETTINGS = (
    select(
        tables.alpha_history.c.alpha,
        tables.alpha_history.c.policy,
        tables.alpha_history.c.beta,
        tables.alpha_history.c.queue_order.label("order"),
        tables.alpha_history.c.slowdown,
        tables.alpha_history.c.late_penalty,
        tables.alpha_history.c.stretch,
    )
    .order_by(tables.alpha_history.c.id.desc())
    .limit(1)
)

INSTANCES = select(tables.instances).order_by(tables.instances.c.name)


def _among(column: Column[Any], postgresql: bool) -> ColumnElement[bool]:
    """Whether a column is one of the parameter `ids`: one text for any number of them."""
    if postgresql:
        return column == any_(bindparam("ids", type_=ARRAY(String)))
    return column.in_(bindparam("ids", expanding=True))


_HELD_COLUMNS = tuple(
    tables.requests.c[name]
    for name in (
        "id",
        "query_id",
        "stage",
        "state",
        "owner",
        "attempt",
        "instance",
        "completion_us",
        "work_us",
        "kv_tokens",
        "input_tokens",
        "admitted_at",
        "started_at",
    )
)

REQUESTS: dict[bool, Select[Any]] = {
    postgresql: select(*_HELD_COLUMNS).where(_among(tables.requests.c.id, postgresql))
    for postgresql in (False, True)
}
"""The named requests, as far as a running one is ended by them; by whether it is PostgreSQL."""

QUERIES: dict[bool, Select[Any]] = {
    postgresql: select(
        tables.queries.c.id,
        tables.queries.c.state,
        tables.queries.c.owner,
        tables.queries.c.reason,
        tables.queries.c.slo_s,
    ).where(_among(tables.queries.c.id, postgresql))
    for postgresql in (False, True)
}
"""The named queries, as far as a submission needs to know them."""

END = (
    update(tables.requests)
    .where(tables.requests.c.id == bindparam("key"))
    .values(
        state=bindparam("new_state"),
        ended_at=bindparam("at"),
        result=bindparam("outcome", type_=tables.requests.c.result.type),
        error=bindparam("message"),
        actual_input_tokens=bindparam("read"),
        actual_output_tokens=bindparam("written"),
        cached_tokens=bindparam("cached"),
    )
)
