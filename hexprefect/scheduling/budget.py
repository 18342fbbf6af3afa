"""Budgets: the share of a query's remaining time that each request gets.

`t_slo(i, j) = (T_i − τ_elapsed) · t̄(j) / Σ_{k on the critical path from j} t̄(k)`
(arXiv 2505.05286, section 4.2). It is computed anew whenever a stage ends and the next becomes
ready, so that an overrun is paid by the stages that remain and a gain is shared among them.
"""

from __future__ import annotations

from collections.abc import Sequence


def allocate_budgets(time_left_s: float, path_costs_s: Sequence[float]) -> tuple[float, ...]:
    """Divide the time left along the critical path in proportion to the expected costs.

    Args:
        time_left_s: seconds until the query's deadline; negative once it has passed, and then so
            are the budgets: an overdue request is never treated as if it were on time.
        path_costs_s: `t̄` of each node on the critical path, the request itself first.

    Returns:
        One budget a node, in seconds. They sum to `time_left_s` (law 5).

    Raises:
        ValueError: when the path is empty or a cost is negative.
    """
    if not path_costs_s:
        raise ValueError("a critical path has at least the request itself on it")
    if min(path_costs_s) < 0:
        raise ValueError(f"a cost is negative: {list(path_costs_s)}")
    total = sum(path_costs_s)
    if total <= 0:
        return tuple(time_left_s / len(path_costs_s) for _ in path_costs_s)
    return tuple(time_left_s * (cost / total) for cost in path_costs_s)


def request_budget(time_left_s: float, path_costs_s: Sequence[float]) -> float:
    """The budget of the first request on the path: `t_slo(i, j)` in seconds."""
    return allocate_budgets(time_left_s, path_costs_s)[0]
