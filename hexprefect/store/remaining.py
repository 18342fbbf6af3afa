"""Learning from an answered query how much work was left after each of its requests."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import select

from hexprefect.scheduling.occupancy import completion_seconds_of
from hexprefect.scheduling.remaining import remaining_after
from hexprefect.store import tables
from hexprefect.store.transaction import Transaction

_request = tables.requests.c


def learn_remaining(tx: Transaction, query_id: str) -> None:
    """Count an answered query into the history of remaining work (`scheduling.remaining`).

    Costs are `t̄` of the lengths that its requests really had; what needed what is their `needs`.
    """
    tx.write_changes()
    rows = tx.connection.execute(
        select(
            _request.id,
            _request.stage,
            _request.needs,
            _request.input_tokens,
            _request.actual_input_tokens,
            _request.actual_output_tokens,
        )
        .where(_request.query_id == query_id, _request.state == "finished")
        .order_by(_request.ready_at, _request.submitted_at, _request.id)
    ).all()
    place = {row.id: index for index, row in enumerate(rows)}
    followers: list[list[int]] = [[] for _ in rows]
    for index, row in enumerate(rows):
        for need in row.needs:
            # A request that was answered again may stand behind what it was once needed for.
            if place.get(need, index) < index:
                followers[place[need]].append(index)
    costs = [
        completion_seconds_of(
            tx.mean_cost,
            row.actual_input_tokens or row.input_tokens,
            row.actual_output_tokens or 0,
        )
        for row in rows
    ]
    visits: Counter[str] = Counter()
    for row, seconds in zip(rows, remaining_after(costs, followers), strict=True):
        tx.learn_remaining(row.stage, visits[row.stage], seconds)
        visits[row.stage] += 1
