"""Orders: static keys, and what each puts first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.order import ORDERS, Order, last_chance, order_key
from hexprefect.scheduling.urgency import laxity, urgency

seconds = st.floats(0, 1e5, allow_nan=False)


def key(order: Order, **changed: float) -> float:
    values = {"ready_at": 10.0, "arrived_at": 5.0, "deadline": 100.0, "budget_s": 20.0}
    return order_key(order, **(values | changed))


def test_each_order_puts_first_what_it_says() -> None:
    assert key("arrival", ready_at=1) < key("arrival", ready_at=2)
    assert key("urgency", budget_s=1) < key("urgency", budget_s=2)
    assert key("urgency", completion_s=9) < key("urgency", completion_s=1)
    assert key("deadline", deadline=50) < key("deadline", deadline=60)
    assert key("laxity", remaining_s=30) < key("laxity", remaining_s=3)
    assert key("attained", attained_s=1) < key("attained", attained_s=2)
    assert key("horizon", remaining_s=30) < key("horizon", remaining_s=3)
    assert key("remaining", remaining_s=3) < key("remaining", remaining_s=30)


@given(seconds, seconds, seconds, seconds, seconds)
def test_the_static_key_of_laxity_orders_as_laxity_does_at_any_moment(
    now: float, deadline_1: float, deadline_2: float, remaining_1: float, remaining_2: float
) -> None:
    first, second = (
        laxity(deadline=deadline, now=now, remaining_s=remaining)
        for deadline, remaining in ((deadline_1, remaining_1), (deadline_2, remaining_2))
    )
    key_1 = key("laxity", deadline=deadline_1, remaining_s=remaining_1)
    key_2 = key("laxity", deadline=deadline_2, remaining_s=remaining_2)
    if abs(first - second) > 1e-6:
        assert (first < second) == (key_1 < key_2)


@given(seconds, seconds, seconds, seconds, seconds)
def test_the_static_key_of_urgency_orders_as_urgency_does_at_any_moment(
    waited: float, budget_1: float, budget_2: float, completion_1: float, completion_2: float
) -> None:
    first, second = (
        urgency(completion_s=completion, budget_s=budget, waited_s=waited)
        for budget, completion in ((budget_1, completion_1), (budget_2, completion_2))
    )
    key_1 = key("urgency", budget_s=budget_1, completion_s=completion_1)
    key_2 = key("urgency", budget_s=budget_2, completion_s=completion_2)
    if abs(first - second) > 1e-6:
        assert (first > second) == (key_1 < key_2)


@given(remaining=seconds, ageing=st.floats(0.01, 10))
def test_ageing_bounds_how_long_the_long_are_overtaken(remaining: float, ageing: float) -> None:
    mine = key("remaining", remaining_s=remaining, arrived_at=0.0, ageing=ageing)
    later = remaining / ageing + 1.0
    assert key("remaining", remaining_s=0.0, arrived_at=later, ageing=ageing) > mine


def test_an_overdue_query_keeps_its_negative_laxity() -> None:
    assert key("laxity", deadline=-50.0) < key("laxity", deadline=-40.0) < key("laxity")


def test_the_last_chance_lies_before_the_deadline_by_what_is_left() -> None:
    assert last_chance(deadline=100.0, remaining_s=30.0) == 70.0


def test_an_unknown_order_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="laxity"):
        key("newest")  # type: ignore[arg-type]
    assert all(isinstance(key(order), float) for order in ORDERS)
