"""Intervals and tests, against published values and against counting."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.evaluation.statistics import mcnemar_exact, wilson_interval


def test_wilson_gives_the_published_intervals() -> None:
    """Newcombe 1998, Statistics in Medicine 17, table I, method 3."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_the_interval_holds_the_share(counts: tuple[int, int]) -> None:
    right, of = counts
    low, high = wilson_interval(right, of)
    assert 0 <= low <= right / of + 1e-12
    assert right / of - 1e-12 <= high <= 1


def test_without_questions_nothing_is_known() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(0, 7), st.integers(0, 7))
def test_p_is_the_share_of_coin_tosses_at_least_as_uneven(wins: int, losses: int) -> None:
    tosses = wins + losses
    uneven = sum(
        abs(2 * sum(outcome) - tosses) >= abs(wins - losses)
        for outcome in itertools.product((0, 1), repeat=tosses)
    )
    assert mcnemar_exact(wins, losses) == pytest.approx(uneven / 2**tosses)


def test_p_of_large_counts_is_finite() -> None:
    assert 0 < mcnemar_exact(900, 1100) < 1e-4
