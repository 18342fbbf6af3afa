"""The queue delay as a clock, and the delays of requests that run side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.delay import (
    busy_after,
    queue_delay,
    queue_delays,
    stall_seconds,
    with_delays_beside,
)

seconds = st.floats(0, 1e4, allow_nan=False)


@given(st.lists(st.tuples(seconds, seconds), max_size=10))
def test_the_clock_is_the_work_of_a_server_that_never_idles_while_it_has_some(
    arrivals: list[tuple[float, float]],
) -> None:
    now = busy = left = 0.0
    for gap, work in arrivals:
        now += gap
        left = max(0.0, left - gap) + work
        busy = busy_after(busy, now=now, work_s=work)
        assert queue_delay(busy, now=now) == pytest.approx(left, rel=1e-9, abs=1e-6)
    assert queue_delay(busy, now=now + left + 1.0) == 0.0
    assert queue_delays([busy, 0.0], now=now) == [queue_delay(busy, now=now), 0.0]


def test_a_prompt_costs_everybody_who_decodes_there_its_prefill() -> None:
    profiles = [(0.1, 0.001, 0.02, 0.0), (0.1, 0.003, 0.02, 0.0)]
    weighed = with_delays_beside([5.0, 7.0], profiles, 1_000, 200.0, [400, 0], [2, 1], [0.0, 0.0])
    assert weighed == pytest.approx([5.0 + 2 * 0.6, 7.0 + 1 * 3.0])
    alone = with_delays_beside([5.0, 7.0], profiles, 1_000, 200.0, [0, 0], [0, 0], [0.1, 0.1])
    assert alone == [5.0, 7.0]


def test_the_prompts_of_those_that_follow_the_neighbours_stop_it() -> None:
    profile = (0.1, 0.001, 0.02, 0.0)
    # A mean request here lasts 0.1 + 0.4 + 1.5 seconds, 0.4 of them its prompt.
    stall = stall_seconds(profile, uncached_tokens=400, output_tokens=75)
    assert stall == pytest.approx(0.02 * 0.4 / 2.0)
    # An answer that decodes for as long as such a request lasts meets a prompt for each neighbour.
    [weighed] = with_delays_beside([5.0], [profile], 1_000, 100.0, [1_000], [3], [stall])
    assert weighed == pytest.approx(5.0 + 3 * 0.4)


@given(st.tuples(seconds, seconds, seconds), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_stall_is_never_more_than_the_token_itself(
    costs: tuple[float, float, float], uncached: float, output: float
) -> None:
    stall = stall_seconds((*costs, 0.0), uncached_tokens=uncached, output_tokens=output)
    assert 0.0 <= stall <= costs[2] * (1 + 1e-12) + 1e-300  # as exact as floats are
    assert stall_seconds((*costs, 0.0), uncached_tokens=0, output_tokens=output) == 0.0
