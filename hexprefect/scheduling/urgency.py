"""Urgency: in which order an instance serves the requests that wait for it.

`U = t_comp(r, m) − (t_slo − waited)`; the largest goes first (arXiv 2505.05286, section 4.2). All
waiting requests age alike, so the order never changes while they wait, and is that of a static key:
`latest_start = ready_at + t_slo − t_comp(r, m)`, smallest first.
"""

from __future__ import annotations


def urgency(*, completion_s: float, budget_s: float, waited_s: float) -> float:
    """`U` in seconds: how much too late the request would end if it started now.

    Positive once the budget cannot be met any more. Never clamped: a request that is overdue keeps
    its place before one that is a little less so.
    """
    return completion_s - (budget_s - waited_s)


def latest_start(*, ready_at: float, budget_s: float, completion_s: float) -> float:
    """The moment (epoch seconds) at which the request must start to meet its budget.

    Smaller is more urgent; may lie in the past.
    """
    return ready_at + budget_s - completion_s


def laxity(*, deadline: float, now: float, remaining_s: float) -> float:
    """Seconds a whole query can still be idle: `deadline − now − remaining critical path`."""
    return deadline - now - remaining_s
