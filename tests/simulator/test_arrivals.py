"""Arrivals: rates, variation, phases, and what is refused."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.simulator import Call, Experiment, Query, named_policy, parse_cluster
from hexprefect.simulator.arrivals import BadArrivals, moments, parse_arrivals, recorded_rate


def gaps(text: str, rate: float, number: int = 20_000, seed: int = 0) -> list[float]:
    at = list(islice(moments(parse_arrivals(text), rate, seed), number))
    return [later - earlier for earlier, later in pairwise([0.0, *at])]


@pytest.mark.parametrize(
    ("text", "variation"),
    [("poisson", 1.0), ("gamma:2", 2.0), ("gamma:0.5", 0.5), ("deterministic", 0.0)],
)
def test_gaps_have_the_mean_and_the_variation_asked_for(text: str, variation: float) -> None:
    drawn = gaps(text, rate=4.0)
    assert fmean(drawn) == pytest.approx(0.25, rel=0.05)
    assert pstdev(drawn) / fmean(drawn) == pytest.approx(variation, abs=0.1)


@given(
    st.sampled_from(["poisson", "gamma:3", "deterministic", "phases:30x2,0x5,2x3"]),
    st.floats(0.01, 30),
    st.integers(0, 99),
)
def test_time_never_runs_back_and_a_seed_repeats(text: str, rate: float, seed: int) -> None:
    at = list(islice(moments(parse_arrivals(text), rate, seed), 200))
    assert at == sorted(at)
    assert at == list(islice(moments(parse_arrivals(text), rate, seed), 200))


def test_a_rate_that_changes_by_phase() -> None:
    at = list(islice(moments(parse_arrivals("phases:1x100,30x100"), 1.0, 1), 3_100))
    first = sum(t < 100 for t in at)
    second = sum(100 <= t < 200 for t in at)
    assert first == pytest.approx(100, rel=0.3)
    assert second == pytest.approx(3_000, rel=0.1)


def test_a_recording_keeps_its_pattern_at_another_rate() -> None:
    at = list(moments(parse_arrivals("recorded"), 2.0, 0, [5.0, 6.0, 9.0]))
    assert at == pytest.approx([0.0, 0.25, 1.0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "poison",
        "gamma",
        "gamma:0",
        "gamma:x",
        "phases:",
        "phases:0x5",
        "phases:1e-300x1",
        "phases:1e300x1e300",
        "phases:1x0",
        "gamma:inf",
        "gamma:nan",
        "gamma:1e200",
        "gamma:1e-200",
        "phases:infx5",
        "phases:1xinf",
        "phases:nanx5",
    ],
)
def test_nonsense_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(BadArrivals, match="phases:RATExSECONDS"):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(BadArrivals, match="rate"):
        moments(parse_arrivals("poisson"), rate, 0)


def test_a_recording_at_its_own_rate_keeps_its_moments() -> None:
    recorded = [5.0, 6.0, 6.0, 9.0]
    at = list(moments(parse_arrivals("recorded"), recorded_rate(recorded), 0, recorded))
    assert at == [0.0, 1.0, 1.0, 4.0]


@pytest.mark.parametrize("recorded", [[7.0], [7.0, 7.0, 7.0]])
def test_a_recording_may_be_of_one_moment(recorded: list[float]) -> None:
    at = list(moments(parse_arrivals("recorded"), recorded_rate(recorded), 0, recorded))
    assert at == [0.0] * len(recorded)


def test_the_rate_of_phases_is_their_mean() -> None:
    assert parse_arrivals("phases:2x30,10x10").phases_rate == pytest.approx(4.0)


def queries_at(*moments: float | None) -> tuple[Query, ...]:
    return tuple(
        Query((Call("s", 10, 5),), tenant=str(place), arrived_at=moment)
        for place, moment in enumerate(moments)
    )


def replayed(*moments: float | None, number: int | None = None) -> list[tuple[float, str]]:
    experiment = Experiment(
        trace="t",
        queries=queries_at(*moments),
        cluster=parse_cluster("a100:1"),
        policy=named_policy("hexgen"),
        rate=recorded_rate(sorted(moment for moment in moments if moment is not None)),
        arrivals=parse_arrivals("recorded"),
        number=number,
    )
    return [(moment, query.tenant) for moment, query in experiment.arriving()]


def test_each_query_of_a_recording_comes_at_its_own_moment_in_their_order() -> None:
    in_order = [(0.0, "1"), (10.0, "2"), (10.0, "3"), (40.0, "0")]
    assert replayed(50.0, 10.0, 20.0, 20.0) == in_order
    assert replayed(50.0, 10.0, 20.0, 20.0, number=2) == in_order[:2]
    assert replayed(50.0, 10.0, 20.0, 20.0, number=9) == in_order


def test_a_recording_in_which_a_query_has_no_moment_is_refused_and_they_are_counted() -> None:
    with pytest.raises(BadArrivals, match="2 of 4 queries have no recorded arrival"):
        replayed(None, 0.0, 100.0, None)


def test_a_recording_without_moments_is_refused() -> None:
    with pytest.raises(BadArrivals, match="recorded"):
        list(moments(parse_arrivals("recorded"), 1.0, 0, []))
