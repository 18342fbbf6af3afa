"""Occupancy, mean profiles, and the plain-number forms of the cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import (
    Profile,
    RequestSize,
    completion_seconds,
    mean_completion_seconds,
)
from hexprefect.scheduling.occupancy import (
    coefficients,
    completion_seconds_each,
    completion_seconds_of,
    mean_profile,
    occupancy_coefficients,
    occupancy_seconds,
)

numbers = st.floats(0, 1, allow_nan=False)
profiles = st.builds(Profile, st.just("p"), numbers, numbers, numbers, numbers)
tokens = st.integers(0, 20_000)


@given(
    st.lists(st.tuples(profiles, tokens, st.integers(0, 300)), min_size=1, max_size=5),
    st.integers(20_000, 40_000),
    st.floats(0, 5_000, allow_nan=False),
)
def test_all_instances_at_once_cost_what_each_costs_bit_for_bit(
    instances: list[tuple[Profile, int, int]], inputs: int, outputs: float
) -> None:
    at_once = completion_seconds_each(
        [coefficients(profile) for profile, _, _ in instances],
        inputs,
        outputs,
        [cached for _, cached, _ in instances],
        [others for _, _, others in instances],
    )
    size = RequestSize(inputs, outputs)
    for cost, (profile, cached, others) in zip(at_once, instances, strict=True):
        expected = completion_seconds(size, profile, cached_tokens=cached, batch=others + 1)
        assert cost == expected
        assert (
            completion_seconds_of(coefficients(profile), inputs - cached, outputs, others)
            == expected
        )


@given(profiles, tokens, tokens, st.floats(0, 5_000, allow_nan=False))
def test_occupancy_is_less_than_the_duration_by_what_the_batch_shares(
    profile: Profile, inputs: int, cached: int, outputs: float
) -> None:
    size = RequestSize(inputs, outputs)
    alone = occupancy_seconds(size, profile, cached_tokens=cached, batch=1)
    assert alone == pytest.approx(completion_seconds(size, profile, cached_tokens=cached))
    shared = occupancy_seconds(size, profile, cached_tokens=cached, batch=16)
    assert shared <= alone * (1 + 1e-12) or profile.batch_growth > 0
    assert completion_seconds_of(
        occupancy_coefficients(profile, batch=16), max(0, inputs - cached), outputs
    ) == pytest.approx(shared)


@given(st.lists(profiles, min_size=1, max_size=4), tokens, st.floats(0, 5_000, allow_nan=False))
def test_the_mean_profile_costs_the_mean(
    several: list[Profile], inputs: int, outputs: float
) -> None:
    size = RequestSize(inputs, outputs)
    assert completion_seconds(size, mean_profile(several)) == pytest.approx(
        mean_completion_seconds(size, several), rel=1e-9
    )


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_profile([])
