"""Orders: by which key the requests that wait for an instance are served; the smallest goes first.

Every key is static: it is written once, when a request becomes ready, and stays right while the
request waits, because what changes with time changes by the same amount for all. So each order is
an index on `(instance, key)`, as the paper's urgency is (see `urgency.latest_start`).

| order | key | from |
| --- | --- | --- |
| `arrival` | when the request became ready | first come, first served |
| `urgency` | `ready_at + budget − t_comp` | HEXGEN-FLOW, arXiv 2505.05286, section 4.2 |
| `deadline` | the query's deadline | earliest deadline first |
| `laxity` | `deadline − remaining` | least laxity first, of the whole query |
| `attained` | seconds of service the query has had | Autellix (PLAS), arXiv 2502.13965 |
| `horizon` | `arrived + standalone − remaining` | HexAGenT, arXiv 2605.16637 (its abstract) |
| `remaining` | `remaining + ageing · arrived` | shortest remaining work of the query, aged |

`remaining` is always predicted from finished queries, never read from the query itself.
"""

from __future__ import annotations

from typing import Literal

from hexprefect.scheduling.urgency import latest_start, laxity

Order = Literal["arrival", "urgency", "deadline", "laxity", "attained", "horizon", "remaining"]

ORDERS: tuple[Order, ...] = (
    "arrival",
    "urgency",
    "deadline",
    "laxity",
    "attained",
    "horizon",
    "remaining",
)


def remaining_key(*, remaining_s: float, arrived_at: float, ageing: float) -> float:
    """Key of the order `remaining`.

    Args:
        remaining_s: predicted work that is left of the query, this request included, in seconds.
        arrived_at: when the query arrived, in seconds of any one clock.
        ageing: seconds of remaining work that one second of age outweighs. 0 is pure shortest
            remaining work, which may starve the long; as it grows the order nears first come,
            first served *by query*. With `ageing > 0` nobody waits for ever: a query passes every
            one that arrives more than `remaining / ageing` seconds after it.
    """
    return remaining_s + ageing * arrived_at


def horizon_key(*, arrived_at: float, standalone_s: float, remaining_s: float) -> float:
    """Key of the order `horizon`: the latest start that keeps the query within the time it would
    take alone, so that the one which overruns that horizon by most goes first."""
    return arrived_at + standalone_s - remaining_s


def order_key(
    order: Order,
    *,
    ready_at: float,
    arrived_at: float,
    deadline: float,
    budget_s: float = 0.0,
    completion_s: float = 0.0,
    remaining_s: float = 0.0,
    standalone_s: float = 0.0,
    attained_s: float = 0.0,
    ageing: float = 0.0,
) -> float:
    """The key of one request under `order`; smaller goes first, ties by `(ready_at, id)`.

    Args:
        order: see the table above; each order reads only what it needs.
        ready_at, arrived_at, deadline: of the request and of its query, on one clock, in seconds.
        budget_s: `t_slo(i, j)`; negative once the deadline has passed.
        completion_s: `t_comp(r, m)` on the appointed instance.
        remaining_s: predicted work left of the query along its critical path, this included.
        standalone_s: predicted duration of the whole query alone.
        attained_s: service that the query's requests have had.
        ageing: see `remaining_key`.

    Raises:
        ValueError: for an unknown order.
    """
    match order:
        case "arrival":
            return ready_at
        case "urgency":
            return latest_start(ready_at=ready_at, budget_s=budget_s, completion_s=completion_s)
        case "deadline":
            return deadline
        case "laxity":
            return laxity(deadline=deadline, now=0.0, remaining_s=remaining_s)
        case "attained":
            return attained_s
        case "horizon":
            return horizon_key(
                arrived_at=arrived_at, standalone_s=standalone_s, remaining_s=remaining_s
            )
        case "remaining":
            return remaining_key(remaining_s=remaining_s, arrived_at=arrived_at, ageing=ageing)
    raise ValueError(f"{order!r} is not an order; there are: {', '.join(ORDERS)}")


def last_chance(*, deadline: float, remaining_s: float) -> float:
    """The moment after which a query is predicted to miss its deadline even if never idle again.

    Under overload a request past this moment may be put off behind those that can still be in
    time: see `put_off`.
    """
    return deadline - remaining_s


def put_off(key: float, *, slo_s: float, penalty: float) -> float:
    """The key of a request that can no longer be in time, as if its deadline were further off.

    It keeps its place among its like, and is passed only by what arrives in the next
    `penalty · slo_s` seconds: nobody starves, however long the overload lasts.

    Args:
        key: under an order whose keys are moments: `urgency`, `deadline` or `laxity`.
        slo_s: of its query, in seconds.
        penalty: by how many SLOs its deadline is put off.
    """
    return key + penalty * slo_s
