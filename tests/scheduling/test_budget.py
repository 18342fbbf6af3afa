"""Law 5: the budgets along the critical path sum to the time left."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import allocate_budgets, request_budget

time_left = st.floats(-1e6, 1e6)
path_costs = st.lists(st.floats(0, 1e4), min_size=1, max_size=12)


@given(time_left, path_costs)
def test_the_budgets_sum_to_the_time_left_also_when_it_is_negative(
    left: float, costs: list[float]
) -> None:
    budgets = allocate_budgets(left, costs)
    assert len(budgets) == len(costs)
    assert math.fsum(budgets) == pytest.approx(left, rel=1e-9, abs=1e-9)


@given(time_left, st.lists(st.floats(1e-3, 1e4), min_size=1, max_size=12))
def test_each_gets_its_share_by_expected_cost(left: float, costs: list[float]) -> None:
    total = math.fsum(costs)
    for budget, cost in zip(allocate_budgets(left, costs), costs, strict=True):
        assert budget == pytest.approx(left * cost / total, rel=1e-9, abs=1e-9)


@given(time_left, path_costs)
def test_a_budget_has_the_sign_of_the_time_left(left: float, costs: list[float]) -> None:
    for budget in allocate_budgets(left, costs):
        assert budget * left >= 0


@given(time_left, path_costs)
def test_a_request_gets_the_first_share(left: float, costs: list[float]) -> None:
    assert request_budget(left, costs) == allocate_budgets(left, costs)[0]


@given(st.floats(1, 1e4), st.lists(st.floats(0.01, 1e3), min_size=2, max_size=8), st.floats(0.1, 5))
def test_an_overrun_is_paid_by_the_stages_that_remain(
    left: float, costs: list[float], factor: float
) -> None:
    used = factor * request_budget(left, costs)
    rest = allocate_budgets(left - used, costs[1:])
    assert used + math.fsum(rest) == pytest.approx(left, rel=1e-6, abs=1e-6)
    planned = allocate_budgets(left, costs)[1:]
    for now, before in zip(rest, planned, strict=True):
        if factor > 1:
            assert now <= before + 1e-9
        else:
            assert now >= before - 1e-9


def test_stages_of_no_expected_cost_share_alike() -> None:
    assert allocate_budgets(6.0, [0.0, 0.0, 0.0]) == (2.0, 2.0, 2.0)


def test_an_empty_path_and_a_negative_cost_are_mistakes() -> None:
    with pytest.raises(ValueError, match="at least the request itself"):
        allocate_budgets(1.0, [])
    with pytest.raises(ValueError, match="negative"):
        allocate_budgets(1.0, [1.0, -0.5])
