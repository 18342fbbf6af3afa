"""Arrivals: rates, variation, phases, and what is refused."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.simulator.arrivals import BadArrivals, moments, parse_arrivals


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
    "text", ["", "poison", "gamma", "gamma:0", "gamma:x", "phases:", "phases:0x5", "phases:1x0"]
)
def test_nonsense_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(BadArrivals, match="phases:RATExSECONDS"):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_must_be_positive(rate: float) -> None:
    with pytest.raises(BadArrivals, match="rate"):
        moments(parse_arrivals("poisson"), rate, 0)


def test_a_recording_without_moments_is_refused() -> None:
    with pytest.raises(BadArrivals, match="recorded"):
        list(moments(parse_arrivals("recorded"), 1.0, 0, []))
