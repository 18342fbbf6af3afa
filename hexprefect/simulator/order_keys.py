"""The key of each order, for a simulated request: one call of `hexprefect.scheduling` each."""

from __future__ import annotations

from collections.abc import Callable

from hexprefect.scheduling import latest_start, laxity, request_budget
from hexprefect.scheduling.order import Order, horizon_key, remaining_key
from hexprefect.simulator.policies import Policy
from hexprefect.simulator.requests import Request

OrderKey = Callable[[Request], float]

NEEDS_REMAINING: frozenset[Order] = frozenset(("urgency", "laxity", "horizon", "remaining"))
"""Orders that ask how much work a query has left."""


def order_key_of(policy: Policy) -> OrderKey:
    """The function that gives a request its key under the policy's order."""
    ageing = policy.ageing

    def arrival(request: Request) -> float:
        return request.ready_at

    def urgency(request: Request) -> float:
        own = request.mean_s
        return latest_start(
            ready_at=request.ready_at,
            budget_s=request_budget(
                request.run.deadline - request.ready_at, (own, request.remaining_s - own)
            ),
            completion_s=request.completion_s,
        )

    def deadline(request: Request) -> float:
        return request.run.deadline

    def query_laxity(request: Request) -> float:
        return laxity(deadline=request.run.deadline, now=0.0, remaining_s=request.remaining_s)

    def attained(request: Request) -> float:
        return request.run.attained_s

    def horizon(request: Request) -> float:
        run = request.run
        return horizon_key(
            arrived_at=run.arrived_at,
            standalone_s=run.standalone_s,
            remaining_s=request.remaining_s,
        )

    def remaining(request: Request) -> float:
        return remaining_key(
            remaining_s=request.remaining_s, arrived_at=request.run.arrived_at, ageing=ageing
        )

    keys: dict[Order, OrderKey] = {
        "arrival": arrival,
        "urgency": urgency,
        "deadline": deadline,
        "laxity": query_laxity,
        "attained": attained,
        "horizon": horizon,
        "remaining": remaining,
    }
    return keys[policy.order]
