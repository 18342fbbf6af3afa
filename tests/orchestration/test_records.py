"""Results of LLM tasks come out of the store as they went in, or are not kept at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion
from hexprefect.orchestration.records import record_of, result_from
from hexprefect.queue.query import completion_record

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)

completions = st.builds(
    Completion,
    text=st.text(),
    input_tokens=st.integers(0, 10**6),
    output_tokens=st.integers(0, 10**6),
    cached_tokens=st.integers(0, 10**6),
    ran_s=st.floats(0, 1e6),
    instance=st.text(),
    request_id=st.text(),
    waited_s=st.floats(0, 1e6),
    attempt=st.integers(1, 9),
)


def through_the_store(result: Any) -> Any:
    record = record_of(result)
    assert record is not None
    return result_from(json.loads(json.dumps(record, allow_nan=False)))


@given(json_values)
def test_what_json_can_say_comes_back_equal(value: Any) -> None:
    assert through_the_store(value) == value


@given(completions)
def test_completions_come_back_as_completions(completion: Completion) -> None:
    assert through_the_store(completion) == completion
    # What the queue keeps without Prefect can be read, too.
    assert result_from(json.loads(json.dumps(completion_record(completion)))) == completion


def test_what_a_newer_release_has_added_does_not_hinder_reading() -> None:
    completion = Completion("SELECT 1", 10, 2)
    assert result_from(completion_record(completion) | {"thoughts": "none"}) == completion


@dataclass
class _Answer:
    text: str


@pytest.mark.parametrize(
    "value",
    [(1, 2), {"a": (1,)}, {1: "a"}, {1, 2}, b"x", float("nan"), _Answer("x"), [_Answer("x")]],
    ids=repr,
)
def test_what_would_come_back_changed_is_not_kept(value: Any) -> None:
    assert record_of(value) is None
