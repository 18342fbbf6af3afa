"""Placement decides as dispatch does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import NoInstance, choose
from hexprefect.scheduling.placement import place

seconds = st.one_of(st.just(0.0), st.floats(0, 1e4, allow_nan=False), st.sampled_from([1.0, 2.0]))


@given(
    st.lists(st.tuples(seconds, seconds), min_size=1, max_size=6),
    st.floats(0, 1),
    st.sampled_from(["normalised", "paper"]),
)
def test_it_returns_what_choose_returns(
    instances: list[tuple[float, float]], alpha: float, policy: str
) -> None:
    completion = [cost for cost, _ in instances]
    delay = [wait for _, wait in instances]
    assert place(completion, delay, alpha=alpha, policy=policy) == choose(  # type: ignore[arg-type]
        completion,
        delay,
        alpha=alpha,
        policy=policy,  # type: ignore[arg-type]
    )


def test_with_no_instance_there_is_no_choice() -> None:
    with pytest.raises(NoInstance):
        place([], [], alpha=0.5)
