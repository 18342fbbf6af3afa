"""Remaining work, learned from finished queries; the depth that bounds a slowdown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import Profile
from hexprefect.scheduling.depth import depth_for_slowdown
from hexprefect.scheduling.remaining import (
    MEMORY,
    RemainingHistory,
    predicted_remaining_seconds,
    remaining_after,
)


def test_parallel_branches_count_once_with_their_longest() -> None:
    # 0 → (1, 2) → 3
    assert remaining_after([1.0, 5.0, 2.0, 3.0], [(1, 2), (3,), (3,), ()]) == (8.0, 3.0, 3.0, 0)


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=MEMORY))
def test_the_history_is_a_mean(seconds: list[float]) -> None:
    history = RemainingHistory()
    for each in seconds:
        history = history.after(each)
    assert history.queries == len(seconds)
    assert abs(history.seconds - sum(seconds) / len(seconds)) <= 1e-6 * max(1.0, *seconds)


def test_a_visit_nobody_made_is_predicted_from_the_visits_before() -> None:
    history = {("fix", 0): RemainingHistory(3, 40.0), ("fix", 1): RemainingHistory(1, 15.0)}
    assert predicted_remaining_seconds(history, "fix", 0) == 40.0
    assert predicted_remaining_seconds(history, "fix", 7) == 15.0
    assert predicted_remaining_seconds(history, "new", 0, expected=9.0) == 9.0


@given(
    slowdown=st.floats(1, 20),
    inputs=st.floats(1, 10_000),
    outputs=st.floats(0, 2_000),
    slow=st.floats(0.1, 10),
)
def test_the_depth_keeps_its_promise_and_no_smaller_one_is_needed(
    slowdown: float, inputs: float, outputs: float, slow: float
) -> None:
    profile = Profile("p", 0.01, 3e-4 * slow, 0.02)
    prefill = profile.fixed_s + profile.input_s_per_token * inputs
    alone = prefill + profile.output_s_per_token * outputs

    def lasts(depth: int) -> float:
        return depth * prefill + profile.output_s_per_token * outputs

    depth = depth_for_slowdown(
        slowdown, profile, uncached_tokens=inputs, output_tokens=outputs, least=1
    )
    assert lasts(depth) <= slowdown * alone * (1 + 1e-9)
    assert lasts(depth + 1) > slowdown * alone * (1 - 1e-9)


def test_an_instance_that_is_slow_at_prompts_gets_fewer() -> None:
    fast, slow = (Profile("p", 0.0, each_input, 0.03) for each_input in (3e-4, 9e-4))
    depths = [
        depth_for_slowdown(4, profile, uncached_tokens=3_000, output_tokens=100)
        for profile in (fast, slow)
    ]
    assert depths[0] > depths[1] >= 2
