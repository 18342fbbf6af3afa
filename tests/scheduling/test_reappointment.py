"""Reappointment: an idle slot takes over what it would finish clearly sooner."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.reappointment import CLEARLY_SOONER, Movable, choose_reappointment

movables = st.lists(
    st.builds(
        Movable,
        id=st.integers().map(str),
        wait_there_s=st.floats(0, 100),
        completion_there_s=st.floats(0, 100),
        completion_here_s=st.floats(0, 100),
    ),
    max_size=10,
    unique_by=lambda movable: movable.id,
)


def gains(movable: Movable) -> bool:
    there = movable.wait_there_s + movable.completion_there_s
    return movable.completion_here_s < CLEARLY_SOONER * there


@given(movables)
def test_the_most_urgent_of_those_that_gain_clearly_is_taken(candidates: list[Movable]) -> None:
    chosen = choose_reappointment(candidates)
    gaining = [candidate.id for candidate in candidates if gains(candidate)]
    assert chosen == (gaining[0] if gaining else None)


def test_a_small_gain_moves_nobody() -> None:
    nearly = Movable("r", wait_there_s=1.0, completion_there_s=9.0, completion_here_s=8.5)
    assert choose_reappointment([nearly]) is None
