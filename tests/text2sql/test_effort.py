"""Effort: what a query may still begin before its deadline, from what its calls have cost."""

from __future__ import annotations

from typing import Any

import pytest

from hexprefect.completion import Completion, Message, PrefixSegment, Prompt
from hexprefect.text2sql.effort import Effort

PROMPT = Prompt(
    "candidate_generation",
    (Message("user", "How many customers?"),),
    prefix=(PrefixSegment("static:candidate_generation", 300), PrefixSegment("schema:1", 900)),
)


async def effort_after(*calls: dict[str, Any], left_s: float = 140.0) -> Effort:
    """What is known after calls with these figures."""
    answers = iter(calls)

    async def complete(prompt: Prompt) -> Completion:
        return Completion("SELECT 1", **next(answers))

    effort = Effort(complete, lambda: left_s, expected_call_s=5.0)
    for _ in calls:
        await effort(PROMPT)
    return effort


def figures(ran_s: float, *, cached: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "input_tokens": 1_500,
        "output_tokens": 60,
        "cached_tokens": cached,
        "ran_s": ran_s,
        **more,
    }


async def test_before_the_first_call_the_options_say_what_to_expect() -> None:
    effort = await effort_after(left_s=9.0)
    assert effort.affords("schema_linking", calls_in_a_row=1)
    assert not effort.affords("candidate_generation (candidate-2)", calls_in_a_row=2)
    assert effort.dropped == ["candidate_generation (candidate-2): 9.0 s left, about 10.0 s needed"]


async def test_a_call_costs_what_those_before_it_did_waiting_included() -> None:
    effort = await effort_after(figures(10.0, waited_s=4.0), figures(20.0, cached=1_400))
    assert effort.call_s == pytest.approx(17.0)


async def test_what_all_prompts_share_is_read_once() -> None:
    """Of 1,500 tokens 1,200 are shared: four fifths of the reading do not come again."""
    effort = await effort_after(figures(159.0, read_s=150.0))
    assert effort.call_s == pytest.approx(159.0 - 0.8 * 150.0)
    assert effort.affords("candidate_generation (candidate-2)", calls_in_a_row=2)


async def test_what_was_found_in_the_cache_was_not_read() -> None:
    effort = await effort_after(figures(19.0, cached=1_200, read_s=10.0))
    assert effort.call_s == pytest.approx(19.0)


async def test_only_the_first_call_reads_for_the_others() -> None:
    """A server that keeps no prefixes reads all of each prompt, and so it is expected to."""
    effort = await effort_after(*[figures(159.0, read_s=150.0)] * 3)
    assert effort.call_s == pytest.approx((39.0 + 159.0 + 159.0) / 3)


@pytest.mark.parametrize("odd", [{"read_s": None}, {"input_tokens": 0, "read_s": 8.0}])
async def test_a_server_that_does_not_tell_is_expected_to_take_as_long_again(
    odd: dict[str, Any],
) -> None:
    effort = await effort_after(figures(9.0) | odd)
    assert effort.call_s == pytest.approx(9.0)


async def test_reading_cannot_have_taken_longer_than_the_call() -> None:
    effort = await effort_after(figures(10.0, read_s=1e6))
    assert effort.call_s == pytest.approx(2.0)
