"""The life cycle of a request: one function a transition.

                 submit                admit               start
    (ready) ───────────────▶ waiting ─────────▶ admitted ─────────▶ running
                                ▲                   │                  │
                                └──── give_back ────┴──────────────────┤
                                                                       ├─ finish ▶ finished
                              cancel ▶ cancelled (from any open state) └─ fail ──▶ failed

Every function takes a `Transaction`, checks its guard (state, owner, attempt) before it changes
anything, and may be called again with the same arguments: the second call changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import bindparam, null, select, update

from hexprefect.errors import CallerMistake
from hexprefect.store import tables
from hexprefect.store.appointment import appoint
from hexprefect.store.changes import Row
from hexprefect.store.settlement import settle
from hexprefect.store.submission import (
    check_fits,
    check_needs,
    check_query,
    fits_some_day,
    new_row,
)
from hexprefect.store.transaction import Transaction, grant_of
from hexprefect.store.values import Grant, LeaseLost, NewRequest, Outcome, Submitted
from hexprefect.store.words import check_name

_request = tables.requests.c

_FIND = select(tables.requests).where(_request.id == bindparam("key"))

_START = (
    update(tables.requests)
    .where(_request.owner == bindparam("holder"), _request.state == "admitted")
    .values(state="running", started_at=bindparam("at"))
    .returning(
        _request.id,
        _request.attempt,
        _request.instance,
        _request.submitted_at,
        _request.ready_at,
        _request.admitted_at,
        _request.budget_s,
        _request.latest_start,
        _request.order_key,
        _request.completion_us,
    )
)


def submit(tx: Transaction, request: NewRequest) -> Submitted | None:
    """(ready) → waiting: budget, dispatch and queue, in one transaction.

    Returns:
        What became of a request that was known before and needed nothing, else `None`: the state of
        a new request is known once the transaction has settled, and `submitted` then tells it.

    Raises:
        CallerMistake: its stage or branch has a name that no column holds.
    """
    seen = tx.row_of(request.id)
    if seen is not None and seen["state"] in tables.OPEN_STATES:
        return None
    check_name("stage", request.stage, most=100)
    check_name("branch", request.branch, most=100)
    check_needs(tx, request)
    check_query(tx, request.query_id)
    if tx.request(request.id) is not None:
        row = _stored(tx, request)
        kept = row["state"] == "finished" and row["result"] is not None
        if kept and row["fingerprint"] == request.fingerprint:
            return _as_submitted(tx, row)
        if row["state"] in tables.OPEN_STATES:
            if row["owner"] == tx.process:
                return _as_submitted(tx, row)
            close_open(tx, row, state="failed", outcome="lost", error="taken over by its query")
        _reopen(tx, request, row)
        return None
    row = new_row(tx, request)
    check_fits(tx, row)
    tx.add_request(row)
    appoint(tx, row, why="submitted")
    return None


def submitted(tx: Transaction, request: NewRequest) -> Submitted:
    """What became of a submission, after the transaction has settled."""
    grants = {grant.request_id: grant for grant in tx.granted}
    grant = grants.get(request.id)
    if grant is not None:
        return Submitted(request.id, "running", grant.instance, tx.settings.alpha, grant)
    row = tx.row_of(request.id)
    if row is None:
        return Submitted(request.id, "waiting", None, tx.settings.alpha)
    return Submitted(request.id, row["state"], row["instance"], tx.settings.alpha)


def start_admitted(tx: Transaction) -> list[Grant]:
    """admitted → running, for every request of this process that another one admitted."""
    rows = tx.connection.execute(_START, {"holder": tx.process, "at": tx.now})
    return [grant_of(row._asdict(), row.instance, tx.now) for row in rows]


def claim(tx: Transaction, *, request_id: str) -> Grant | None:
    """The grant of a request of this process that was admitted, or runs without its knowing.

    Its news may have been lost with the connection over which its commit was to be confirmed.
    """
    settle(tx)
    tx.flush()
    row = _find(tx, request_id)
    if row is None or row["owner"] != tx.process or row["state"] not in tables.HOLDING_STATES:
        return None
    if row["state"] == "admitted":
        row.update(started := {"state": "running", "started_at": tx.now})
        found = update(tables.requests).where(_request.id == request_id)
        tx.connection.execute(found.values(started))
        tx.forget_request(request_id)
    return grant_of(row, row["instance"], row["started_at"])


def finish(
    tx: Transaction, *, request_id: str, attempt: int, outcome: Outcome, database: str = ""
) -> None:
    """running → finished: keep the result, free the slot, learn the lengths, let the next one in.

    Raises:
        LeaseLost: when the request is not this process's any more; nothing has changed then.
    """
    row = _running(tx, request_id, attempt, ends_as="finished")
    if row is None:
        return
    tx.end_request(
        row,
        outcome=dict(outcome.result) if outcome.result is not None else None,
        message=None,
        read=outcome.input_tokens,
        written=outcome.output_tokens,
        cached=outcome.cached_tokens,
    )
    read = row["input_tokens"] if outcome.input_tokens is None else outcome.input_tokens
    if outcome.output_tokens is not None and row["instance"] is not None:
        tx.instances[row["instance"]].measure(
            uncached_tokens=max(0, read - outcome.cached_tokens),
            output_tokens=outcome.output_tokens,
        )
    _end_attempt(tx, request_id, attempt, row, outcome="finished", error=None)
    if outcome.input_tokens is not None and outcome.output_tokens is not None:
        tx.learn(
            row["stage"],
            database,
            input_tokens=outcome.input_tokens,
            output_tokens=outcome.output_tokens,
        )


def fail(tx: Transaction, *, request_id: str, attempt: int, error: str) -> None:
    """running → failed. A retry submits the same request again and is its next attempt.

    Raises:
        LeaseLost: as for `finish`.
    """
    row = _running(tx, request_id, attempt, ends_as="failed")
    if row is None:
        return
    tx.end_request(row, outcome=None, message=error, read=None, written=None, cached=None)
    _end_attempt(tx, request_id, attempt, row, outcome="failed", error=error)


def give_back(tx: Transaction, *, request_id: str, attempt: int, why: str) -> None:
    """admitted or running → waiting, in another instance's queue where there is one.

    Raises:
        LeaseLost: as for `finish`.
    """
    row = _owned(tx, _find(tx, request_id), request_id, attempt)
    if row["state"] == "waiting":
        return
    if row["state"] not in tables.HOLDING_STATES:
        raise _lost(request_id)
    move(tx, row, why=why)


def outgrow(
    tx: Transaction,
    *,
    request_id: str,
    attempt: int,
    input_tokens: int,
    context_tokens: int | None,
    why: str,
) -> None:
    """running → waiting, elsewhere: its instance counted more tokens than it can hold.

    The server's count replaces the estimate, and the context length it told is kept for what comes
    after, so that only instances that can hold the request are asked again.

    Args:
        tx: the transaction.
        request_id: the request.
        attempt: the attempt that was rejected.
        input_tokens: the prompt's length as the instance counted it.
        context_tokens: what the instance said it can hold, where it did.
        why: kept with the decision and the attempt.

    Raises:
        LeaseLost: as for `finish`.
        NoInstanceFits: no instance could hold it; nothing is changed then.
    """
    row = _owned(tx, _find(tx, request_id), request_id, attempt)
    if row["state"] not in tables.HOLDING_STATES:
        raise _lost(request_id)
    load = tx.instances[row["instance"]]
    if context_tokens is not None and load.context_tokens is None:
        tx.connection.execute(
            update(tables.instances)
            .where(tables.instances.c.name == load.name)
            .values(context_tokens=context_tokens)
        )
        load.context_tokens = context_tokens
    too_small = load.context_tokens or 0
    size = {
        "input_tokens": input_tokens,
        "kv_tokens": max(input_tokens + round(row["predicted_output_tokens"]), too_small + 1),
    }
    check_fits(tx, row | size)
    move(tx, row, why=why, size=size)


def move(tx: Transaction, row: Row, *, why: str, size: Mapping[str, int] | None = None) -> None:
    """Appoint an open request anew, away from the instance it is on; its lease, if any, ends.

    Args:
        tx: the transaction.
        row: the request's columns; changed in place.
        why: kept with the decision and the attempt.
        size: columns of its size to replace, when it turned out to be another.
    """
    left = row["instance"]
    if row["state"] in tables.HOLDING_STATES:
        _end_attempt(tx, row["id"], row["attempt"], row, outcome="moved", error=why)
    else:
        tx.withdraw(row)
    tx.connection.execute(
        update(tables.requests)
        .where(_request.id == row["id"])
        .values(state="waiting", admitted_at=None, started_at=None, **(size or {}))
    )
    row.update(state="waiting", admitted_at=None, started_at=None, **(size or {}))
    tx.forget_request(row["id"])
    appoint(tx, row, why=why, avoid=frozenset({left}) if left else frozenset())


def cancel(tx: Transaction, *, request_id: str, why: str) -> bool:
    """Any open state of a request of this process → cancelled; whether there was anything to do."""
    settle(tx)
    tx.flush()
    row = _find(tx, request_id)
    if row is None or row["owner"] != tx.process or row["state"] not in tables.OPEN_STATES:
        return False
    close_open(tx, row, state="cancelled", outcome="cancelled", error=why)
    return True


def close_open(tx: Transaction, row: Row, *, state: str, outcome: str, error: str) -> None:
    """End an open request without a result, and free what it held."""
    tx.connection.execute(
        update(tables.requests)
        .where(_request.id == row["id"])
        .values(state=state, ended_at=tx.now, error=error)
    )
    if row["state"] in tables.HOLDING_STATES:
        _end_attempt(tx, row["id"], row["attempt"], row, outcome=outcome, error=error)
    else:
        tx.withdraw(row)
    row["state"] = state
    tx.closed(row["id"], state)


def appoint_unappointed(tx: Transaction) -> int:
    """Dispatch the requests that no instance could take when they came; how many found one."""
    tx.flush()
    rows = tx.connection.execute(
        select(tables.requests)
        .where(_request.state == "waiting", _request.instance.is_(None))
        .order_by(_request.order_key, _request.ready_at, _request.id)
    )
    found = 0
    for stored in rows.all():
        row = stored._asdict()
        if fits_some_day(tx, row):
            found += appoint(tx, row, why="an instance became available") is not None
        else:
            # Its process submits it again and is told why.
            close_open(tx, row, state="failed", outcome="failed", error="no instance can hold it")
    return found


def _stored(tx: Transaction, request: NewRequest) -> Row:
    row = _find(tx, request.id)
    assert row is not None
    if row["query_id"] != request.query_id:
        raise CallerMistake(
            f"Request {request.id} belongs to query {row['query_id']}, not {request.query_id}.",
            remedy="Give each request an id of its own.",
        )
    return row


def _reopen(tx: Transaction, request: NewRequest, known: Row) -> None:
    row = new_row(tx, request)
    check_fits(tx, row)
    kept = {"attempt": known["attempt"], "passed_over": 0}
    columns = {key: value for key, value in row.items() if key not in {"id", "query_id", *kept}}
    tx.connection.execute(
        update(tables.requests)
        .where(_request.id == request.id)
        .values(
            **columns,
            passed_over=0,
            result=null(),
            actual_input_tokens=None,
            actual_output_tokens=None,
            cached_tokens=None,
        )
    )
    row.update(kept)
    tx.reopened(row)
    appoint(tx, row, why="submitted again")


def _as_submitted(tx: Transaction, row: Row) -> Submitted:
    grant = None
    if row["state"] == "running" and row["owner"] == tx.process:
        grant = grant_of(row, row["instance"], row["started_at"])
    return Submitted(
        request_id=row["id"],
        state=row["state"],
        instance=row["instance"],
        alpha=tx.settings.alpha,
        grant=grant,
        result=row.get("result") if row["state"] == "finished" else None,
    )


def _end_attempt(
    tx: Transaction, request_id: str, attempt: int, row: Row, *, outcome: str, error: str | None
) -> None:
    tx.release(row)
    tx.record_attempt(
        request_id=request_id,
        number=attempt,
        instance=row["instance"],
        owner=row.get("owner", tx.process),
        admitted_at=row["admitted_at"],
        started_at=row["started_at"],
        ended_at=tx.now,
        outcome=outcome,
        error=error,
    )


def _find(tx: Transaction, request_id: str) -> Row | None:
    tx.write_changes()
    row = tx.connection.execute(_FIND, {"key": request_id}).first()
    return None if row is None else row._asdict()


def _running(tx: Transaction, request_id: str, attempt: int, *, ends_as: str) -> Row | None:
    """A request that this process runs, marked as ended; `None` when it has ended so already."""
    row = _owned(tx, tx.request(request_id), request_id, attempt)
    if row["state"] == ends_as:
        return None
    if row["state"] != "running":
        raise _lost(request_id)
    row["state"] = ends_as
    return row


def _owned(tx: Transaction, row: Row | None, request_id: str, attempt: int) -> Row:
    """The row of a request whose attempt is this process's."""
    if row is None or row["owner"] != tx.process or row["attempt"] != attempt:
        raise _lost(request_id)
    return row


def _lost(request_id: str) -> LeaseLost:
    return LeaseLost(
        f"Request {request_id} is not held by this process any more.",
        remedy="Its lease expired or it was cancelled; submit it again for another attempt.",
    )
