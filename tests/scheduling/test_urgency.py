"""Urgency: the order by `U`, largest first, is the order by `latest_start`, smallest first."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hexprefect.scheduling import latest_start, laxity, urgency

seconds = st.floats(-1e4, 1e4)
waiting = st.lists(
    st.tuples(st.floats(0, 1e3), seconds, st.floats(0, 1e3)), min_size=2, max_size=10
)
"""`(ready_at, budget_s, completion_s)`, budgets of overdue requests included."""


@given(waiting, st.floats(1e3, 1e5))
def test_the_order_by_urgency_is_that_of_the_static_key_whenever_one_looks(
    requests: list[tuple[float, float, float]], now: float
) -> None:
    keys = [
        latest_start(ready_at=ready, budget_s=budget, completion_s=cost)
        for ready, budget, cost in requests
    ]
    urgencies = [
        urgency(completion_s=cost, budget_s=budget, waited_s=now - ready)
        for ready, budget, cost in requests
    ]
    for one in range(len(requests)):
        for other in range(len(requests)):
            if keys[one] < keys[other] - 1e-6:
                assert urgencies[one] > urgencies[other]


@given(seconds, seconds, st.floats(0, 1e3), st.floats(0, 1e4))
def test_urgency_is_how_late_it_would_end_if_it_started_now(
    ready: float, budget: float, cost: float, waited: float
) -> None:
    start_by = latest_start(ready_at=ready, budget_s=budget, completion_s=cost)
    too_late_s = (ready + waited) - start_by
    assert urgency(completion_s=cost, budget_s=budget, waited_s=waited) == pytest.approx(
        too_late_s, rel=1e-9, abs=1e-6
    )


@given(st.floats(-1e4, -1), st.floats(-1e4, -1), st.floats(0, 10))
def test_the_more_overdue_of_two_goes_first(one: float, other: float, cost: float) -> None:
    assume(abs(one - other) > 1e-6)
    more, less = sorted((one, other))
    assert latest_start(ready_at=0, budget_s=more, completion_s=cost) < latest_start(
        ready_at=0, budget_s=less, completion_s=cost
    )
    assert urgency(completion_s=cost, budget_s=more, waited_s=0) > cost - less


def test_laxity_is_negative_once_a_query_cannot_make_it() -> None:
    assert laxity(deadline=100.0, now=90.0, remaining_s=4.0) == 6.0
    assert laxity(deadline=100.0, now=110.0, remaining_s=4.0) == -14.0
