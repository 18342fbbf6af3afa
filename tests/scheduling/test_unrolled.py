"""The fast forms of placement decide, and cost, what the plain functions do, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.delay import queue_delays, with_delays_beside
from hexprefect.scheduling.occupancy import Coefficients, completion_seconds_each
from hexprefect.scheduling.placement import place, place_by_clock, place_by_tables
from hexprefect.scheduling.unrolled import placing_by_clock, placing_by_tables

seconds = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0]), st.floats(0, 1e4))
each_token = st.one_of(st.sampled_from([0.0, 3e-4]), st.floats(0, 0.1))


@dataclass(frozen=True)
class Case:
    profiles: list[Coefficients]
    input_tokens: int
    output_tokens: float
    cached: list[int]
    admitted: list[int]
    most_beside: list[int]
    waiting: list[float]
    stalls: list[float]
    delays: list[float]
    now: float
    alpha: float


@st.composite
def cases(draw: st.DrawFn) -> Case:
    number = draw(st.sampled_from([1, 2, 3, 4, 4, 4, 7]))

    def each(values: st.SearchStrategy) -> list:  # type: ignore[type-arg]
        return draw(st.lists(values, min_size=number, max_size=number))

    tokens = draw(st.integers(1, 20_000))
    return Case(
        # Few different ones, so that instances tie.
        profiles=each(
            st.sampled_from(
                draw(
                    st.lists(
                        st.tuples(seconds, each_token, each_token, each_token),
                        min_size=1,
                        max_size=3,
                    )
                )
            )
        ),
        input_tokens=tokens,
        output_tokens=draw(st.floats(0, 5_000)),
        cached=each(st.sampled_from([0, tokens // 2, tokens])),
        admitted=each(st.integers(0, 60)),
        most_beside=each(st.integers(0, 60)),
        waiting=each(seconds),
        stalls=each(each_token),
        delays=each(seconds),
        now=draw(seconds),
        alpha=draw(st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))),
    )


@given(cases())
def test_by_tables(case: Case) -> None:
    nothing = [0] * len(case.profiles)
    costs = completion_seconds_each(
        case.profiles, case.input_tokens, case.output_tokens, nothing, nothing
    )
    index = place(costs, case.delays, alpha=case.alpha)
    starts = [fixed + each * case.input_tokens for fixed, each, _, _ in case.profiles]
    arguments = (starts, case.output_tokens, case.delays)
    assert place_by_tables(*arguments, profiles=case.profiles, alpha=case.alpha) == (
        index,
        costs[index],
    )
    assert placing_by_tables(case.profiles, alpha=case.alpha)(*arguments) == (index, costs[index])


@given(cases())
def test_by_clock(case: Case) -> None:
    busy_until = case.delays
    others = list(map(min, case.admitted, case.most_beside))
    costs = completion_seconds_each(
        case.profiles, case.input_tokens, case.output_tokens, case.cached, others
    )
    weighed = with_delays_beside(
        costs,
        case.profiles,
        case.input_tokens,
        case.output_tokens,
        case.cached,
        others,
        case.stalls,
    )
    delays = queue_delays(busy_until, now=case.now, waiting_s=case.waiting)
    index = place(weighed, delays, alpha=case.alpha)
    arguments = (
        case.input_tokens,
        case.output_tokens,
        case.cached,
        case.admitted,
        case.most_beside,
        busy_until,
        case.waiting,
        case.stalls,
        case.now,
    )
    assert place_by_clock(*arguments, profiles=case.profiles, alpha=case.alpha) == (
        index,
        costs[index],
    )
    assert placing_by_clock(case.profiles, alpha=case.alpha)(*arguments) == (index, costs[index])


@pytest.mark.parametrize("number", [1, 2, 4])
def test_what_is_made_for_one_alpha_does_not_serve_another(number: int) -> None:
    fast_last = [(float(number - index), 0.0, 0.0, 0.0) for index in range(number)]
    full_last = [float(index) for index in range(number)]
    arguments = ([profile[0] for profile in fast_last], 0.0, full_last)
    assert placing_by_tables(fast_last, alpha=1.0)(*arguments)[0] == number - 1
    assert placing_by_tables(fast_last, alpha=0.0)(*arguments)[0] == 0
