"""The queue delay as a clock, and the delay that a request causes to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.delay import busy_after, queue_delay, queue_delays, with_delay_caused

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
    weighed = with_delay_caused([5.0, 7.0], profiles, 1_000, [400, 0], [2, 1])
    assert weighed == pytest.approx([5.0 + 2 * 0.6, 7.0 + 1 * 3.0])
    assert with_delay_caused([5.0, 7.0], profiles, 1_000, [0, 0], [0, 0]) == [5.0, 7.0]
