"""Completions on disk, and what the calls of a question cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hexprefect.completion import Completion, Message, Prompt
from hexprefect.evaluation.completions_cache import CachedCompletions, is_from_cache
from hexprefect.evaluation.metering import Meter
from hexprefect.instances.errors import InstanceUnavailable

PROMPT = Prompt("judge", (Message("system", "Be brief."), Message("user", "Which?")), seed=1)


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, prompt: Prompt) -> Completion:
        self.calls += 1
        return Completion(f"answer {self.calls}", 7, 3, cached_tokens=2, ran_s=1.5)


def kept_in(folder: Path) -> list[Path]:
    return list(folder.rglob("*.json"))


async def test_the_same_prompt_is_asked_once_also_by_a_later_process(tmp_path: Path) -> None:
    model = Counting()
    first = await CachedCompletions(model, tmp_path, "m")(PROMPT)
    again = await CachedCompletions(model, tmp_path, "m")(PROMPT)
    assert model.calls == 1
    assert not is_from_cache(first)
    assert is_from_cache(again)
    assert replace(again, extra={}) == first, "it tells what it cost when it was made"


@pytest.mark.parametrize(
    "other",
    [
        replace(PROMPT, seed=2),
        replace(PROMPT, temperature=0.7),
        replace(PROMPT, max_output_tokens=9),
        replace(PROMPT, response_format={"type": "json_object"}),
        replace(PROMPT, messages=(Message("user", "Which?"),)),
    ],
)
async def test_whatever_changes_the_answer_is_another_prompt(tmp_path: Path, other: Prompt) -> None:
    cache = CachedCompletions(Counting(), tmp_path, "m")
    assert await cache(PROMPT) != await cache(other)


async def test_what_does_not_change_the_answer_is_the_same_prompt(tmp_path: Path) -> None:
    cache = CachedCompletions(Counting(), tmp_path, "m")
    await cache(PROMPT)
    await cache(replace(PROMPT, stage="unit_test_generation", branch="candidate-2"))
    assert (cache.hits, cache.misses) == (1, 1)


async def test_another_model_has_answers_of_its_own(tmp_path: Path) -> None:
    model = Counting()
    await CachedCompletions(model, tmp_path, "m")(PROMPT)
    await CachedCompletions(model, tmp_path, "n")(PROMPT)
    assert model.calls == 2


async def test_a_file_that_was_not_written_whole_is_written_anew(tmp_path: Path) -> None:
    model = Counting()
    await CachedCompletions(model, tmp_path, "m")(PROMPT)
    [file] = kept_in(tmp_path)
    file.write_text(file.read_text()[:20])
    await CachedCompletions(model, tmp_path, "m")(PROMPT)
    assert model.calls == 2
    await CachedCompletions(model, tmp_path, "m")(PROMPT)
    assert model.calls == 2


async def test_a_failure_is_not_kept(tmp_path: Path) -> None:
    async def failing(prompt: Prompt) -> Completion:
        raise InstanceUnavailable("is gone.", instance="one", kind="died")

    with pytest.raises(InstanceUnavailable):
        await CachedCompletions(failing, tmp_path, "m")(PROMPT)
    assert not kept_in(tmp_path)


async def test_the_meter_tells_the_cost_of_each_call_and_whether_it_was_paid_now(
    tmp_path: Path,
) -> None:
    cache = CachedCompletions(Counting(), tmp_path, "m")
    meter = Meter(cache)
    await meter(PROMPT)
    await meter(replace(PROMPT, branch="candidate-1"))
    paid, free = meter.calls
    assert (paid.stage, paid.input_tokens, paid.cached_tokens, paid.output_tokens) == (
        "judge",
        7,
        2,
        3,
    )
    assert (paid.seconds, free.seconds) == (1.5, 1.5)
    assert (paid.from_cache, free.from_cache) == (False, True)
    assert free.branch == "candidate-1"
