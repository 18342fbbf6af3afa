"""Prediction: output lengths from finished requests of the stage, never from the answer itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.scheduling.prediction import (
    ANY_DATABASE,
    DEFAULT_OUTPUT_TOKENS,
    ENOUGH,
    MEMORY,
    StageHistory,
    predicted_input_tokens,
    predicted_output_tokens,
)

lengths = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 5_000)), min_size=1, max_size=MEMORY
)


def after(pairs: list[tuple[int, int]]) -> StageHistory:
    history = StageHistory()
    for read, written in pairs:
        history = history.after(input_tokens=read, output_tokens=written)
    return history


@given(lengths)
def test_up_to_its_memory_a_history_is_the_plain_mean(pairs: list[tuple[int, int]]) -> None:
    history = after(pairs)
    assert history.count == len(pairs)
    assert history.input_tokens == pytest.approx(sum(r for r, _ in pairs) / len(pairs))
    assert history.output_tokens == pytest.approx(sum(w for _, w in pairs) / len(pairs))


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_beyond_its_memory_it_forgets(old: int, new: int) -> None:
    history = after([(0, old)] * MEMORY + [(0, new)] * (6 * MEMORY))
    assert history.output_tokens == pytest.approx(new, rel=0.01, abs=0.01 * abs(old - new) + 0.01)


def test_a_database_is_believed_once_it_has_enough_history_of_its_own() -> None:
    general = after([(100, 10)] * 20)
    for count in range(1, ENOUGH + 2):
        history = {("s", ANY_DATABASE): general, ("s", "shop"): after([(300, 70)] * count)}
        own = count >= ENOUGH
        assert predicted_output_tokens(history, "s", "shop") == pytest.approx(70 if own else 10)
        assert predicted_input_tokens(history, "s", "shop") == pytest.approx(300 if own else 100)
        assert predicted_output_tokens(history, "s", "bank") == pytest.approx(10)


def test_without_history_the_workflow_is_asked_and_then_the_default() -> None:
    assert predicted_output_tokens({}, "s", "shop", expected=42.0) == 42.0
    assert predicted_output_tokens({}, "s", "shop") == DEFAULT_OUTPUT_TOKENS
    assert predicted_input_tokens({}, "s", "shop", expected=42.0) == 42.0
    assert predicted_input_tokens({}, "s", "shop") == 0.0
