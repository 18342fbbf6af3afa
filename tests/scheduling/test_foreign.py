"""What is not ours on an instance: counted with care, and turned into work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling import Profile
from hexprefect.scheduling.foreign import foreign_requests, foreign_work_seconds, typical_size
from hexprefect.scheduling.prediction import StageHistory

counts = st.integers(0, 300)


@given(counts, counts, counts)
def test_what_is_not_ours_is_foreign(running: int, waiting: int, ours: int) -> None:
    here, there = foreign_requests(running=running, waiting=waiting, ours=ours)
    assert here + there == max(0, running + waiting - ours)
    assert 0 <= here <= running
    assert 0 <= there <= waiting


@pytest.mark.parametrize(
    ("running", "waiting", "ours", "foreign"),
    [(5, 0, 5, (0, 0)), (5, 0, 2, (3, 0)), (5, 4, 2, (5, 2)), (0, 0, 3, (0, 0))],
)
def test_some_counts(running: int, waiting: int, ours: int, foreign: tuple[int, int]) -> None:
    assert foreign_requests(running=running, waiting=waiting, ours=ours) == foreign


def test_others_requests_are_taken_to_be_like_ours() -> None:
    size = typical_size([StageHistory(3, 1000.0, 40.0), StageHistory(1, 2000.0, 80.0)])
    assert (size.input_tokens, size.output_tokens) == (1250, 50.0)


def test_without_history_there_is_still_a_guess() -> None:
    size = typical_size([])
    assert size.input_tokens > 0
    assert size.output_tokens > 0


def test_their_work_grows_with_their_number_and_more_so_where_they_slow_each_other() -> None:
    alone = Profile("p", 0.1, 1e-3, 0.02)
    crowded = Profile("p", 0.1, 1e-3, 0.02, batch_growth=0.1)
    size = typical_size([StageHistory(1, 1000.0, 50.0)])
    assert foreign_work_seconds(0, size, alone) == 0.0
    assert foreign_work_seconds(1, size, alone) == pytest.approx(2.1)
    assert foreign_work_seconds(4, size, alone) == pytest.approx(4 * 2.1)
    assert foreign_work_seconds(4, size, crowded) == pytest.approx(4 * (1.1 + 1.3))
