"""The life of a query in the store: it is registered, resumed after a restart, and ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import insert, null, select, update

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.processes import enter_process
from hexprefect.store.remaining import learn_remaining
from hexprefect.store.settlement import settle
from hexprefect.store.submission import take_up_again
from hexprefect.store.transaction import Transaction
from hexprefect.store.transitions import close_open
from hexprefect.store.values import (
    NewQuery,
    QueryState,
    RegisteredQuery,
    UnknownQuery,
    UnknownTenant,
)
from hexprefect.store.words import check_name

LONGEST_SLO_S = 30 * 24 * 3600.0


def check_slo(slo_s: float) -> float:
    """Return a usable SLO in seconds.

    Raises:
        CallerMistake: when it is not a positive number of seconds up to thirty days.
    """
    if not math.isfinite(slo_s) or not 0 < slo_s <= LONGEST_SLO_S:
        raise CallerMistake(
            f"An SLO of {slo_s!r} seconds makes no sense.",
            remedy="Give a number of seconds above 0, up to thirty days.",
        )
    return slo_s


def register_query(tx: Transaction, query: NewQuery) -> RegisteredQuery:
    """Enter a query, or take it up again where a process before this one left it.

    A query that is known keeps its arrival and its deadline: a restart gives nobody more time. What
    the process before had open is ended, so that this one can submit it again.

    Raises:
        UnknownTenant: when the tenant is not known or is disabled.
        CallerMistake: when the SLO is nonsense, or a name too long.
    """
    check_slo(query.slo_s)
    check_name("query id", query.id, most=64)
    check_name("tenant", query.tenant, most=100)
    known = tx.connection.execute(
        select(tables.queries).where(tables.queries.c.id == query.id)
    ).first()
    if known is not None:
        _resume(tx, query.id)
        return RegisteredQuery(id=query.id, deadline=known.deadline, resumed=True)
    _check_tenant(tx, query.tenant)
    enter_process(tx)
    deadline = query.arrived_at + query.slo_s
    tx.forget_query(query.id)
    tx.connection.execute(
        insert(tables.queries),
        [
            {
                "id": query.id,
                "tenant": query.tenant,
                "database": query.database,
                "question": query.question,
                "owner": tx.process,
                "slo_s": query.slo_s,
                "arrived_at": query.arrived_at,
                "deadline": deadline,
                "state": "running",
                "dropped_work": [],
            }
        ],
    )
    return RegisteredQuery(id=query.id, deadline=deadline, resumed=False)


def end_query(
    tx: Transaction,
    query_id: str,
    *,
    state: QueryState,
    reason: str | None = None,
    sql: str | None = None,
    dropped_work: Sequence[str] = (),
    answer: Mapping[str, Any] | None = None,
) -> None:
    """End a query with a reason that a person understands (law 10); ends what it has still open.

    Args:
        answer: what it brought, as JSON: kept so that any process can show it.

    A query that has ended already, or was started again by another process, stays as it is.

    Raises:
        UnknownQuery: when there is none of this id.
    """
    known = tx.connection.execute(
        select(tables.queries.c.state, tables.queries.c.owner).where(
            tables.queries.c.id == query_id
        )
    ).first()
    if known is None:
        raise UnknownQuery(f"No query {query_id!r} in the store.")
    if known.state != "running" or known.owner != tx.process:
        return
    why = reason or {"answered": "answered", "cancelled": "cancelled"}.get(state, "failed")
    _close_requests(
        tx, query_id, state="cancelled", outcome="cancelled", error=f"its query ended: {why}"
    )
    if state == "answered":
        learn_remaining(tx, query_id)
    tx.forget_query(query_id)
    tx.connection.execute(
        update(tables.queries)
        .where(tables.queries.c.id == query_id)
        .values(
            state=state,
            reason=reason if state == "answered" else why,
            sql=sql,
            dropped_work=list(dropped_work),
            answer=null() if answer is None else dict(answer),
            ended_at=tx.now,
        )
    )


def add_tenant(
    tx: Transaction, name: str, *, default_slo_s: float | None = None, enabled: bool = True
) -> None:
    """Enter a tenant, or change its settings.

    Raises:
        CallerMistake: its name is empty or too long.
    """
    check_name("tenant", name, most=100, least=1)
    values = {"default_slo_s": default_slo_s, "enabled": enabled}
    changed = tx.connection.execute(
        update(tables.tenants).where(tables.tenants.c.name == name).values(**values)
    )
    if not changed.rowcount:
        tx.connection.execute(
            insert(tables.tenants), [{"name": name, "created_at": tx.now, **values}]
        )


def _check_tenant(tx: Transaction, tenant: str) -> None:
    known = tx.connection.execute(
        select(tables.tenants.c.enabled).where(tables.tenants.c.name == tenant)
    ).first()
    if known is not None and known.enabled:
        return
    names = tx.connection.execute(
        select(tables.tenants.c.name)
        .where(tables.tenants.c.enabled)
        .order_by(tables.tenants.c.name)
        .limit(20)
    ).scalars()
    problem = "is not known" if known is None else "is disabled"
    raise UnknownTenant(
        f"The tenant {tenant!r} {problem}.",
        remedy=f"Use one of: {', '.join(names)}; or add it with `hexprefect tenants add`.",
    )


def _resume(tx: Transaction, query_id: str) -> None:
    _close_requests(
        tx, query_id, state="failed", outcome="lost", error="its query was started again"
    )
    take_up_again(tx, query_id)


def _close_requests(
    tx: Transaction, query_id: str, *, state: str, outcome: str, error: str
) -> None:
    settle(tx)
    tx.flush()
    rows = tx.connection.execute(
        select(tables.requests).where(
            tables.requests.c.query_id == query_id,
            tables.requests.c.state.in_(tables.OPEN_STATES),
        )
    )
    for row in rows.all():
        close_open(tx, row._asdict(), state=state, outcome=outcome, error=error)
