"""The emulator answers as vLLM 0.32 was recorded to answer: statuses, error bodies, fields.

`answers_of_vllm_0_32.json` holds what the real server said to every request of `cases`; the test of
the real server (`test_real_vllm`) records it anew and compares.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hexprefect.instances.emulator import Computed, Emulator
from tests.real_vllm.cases import CASES, CONTEXT_TOKENS, Case, ask

HERE = Path(__file__).parent
VLLM: dict[str, Any] = json.loads((HERE / "answers_of_vllm_0_32.json").read_text("utf-8"))

WORDED_OTHERWISE = {
    # vLLM lists what each of eleven kinds of message would have needed.
    "chat with a message without a role",
    # … and what each of three kinds of format.
    "chat with an unknown format",
    # The words of a parser of grammars, which the emulator has not.
    "chat with a bad grammar",
}
"""Here the emulator's message begins otherwise; everything else is the same, `param` included."""


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What the emulator says to every request."""

    async def ask_all() -> dict[str, Any]:
        emulator = Emulator(
            "a100",
            model="tiny",
            max_model_len=CONTEXT_TOKENS,
            time_scale=1000,
            content=Computed(lambda generation: "SELECT 1"),
        )
        async with (
            emulator as endpoint,
            httpx.AsyncClient(trust_env=False, timeout=60) as http,
        ):
            return {case.name: await ask(http, endpoint.url, case, model="tiny") for case in CASES}

    return asyncio.run(ask_all())


def test_there_are_enough_requests_good_and_bad() -> None:
    assert set(VLLM) == {case.name for case in CASES}
    statuses = [answer["status"] for answer in VLLM.values()]
    assert sum(status == 200 for status in statuses) >= 25
    assert sum(status >= 400 for status in statuses) >= 25


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_emulator_answers_as_vllm(case: Case, answers: dict[str, Any]) -> None:
    theirs, ours = dict(VLLM[case.name]), dict(answers[case.name])
    if case.name in WORDED_OTHERWISE:
        assert theirs["error"]["error"].pop("message") != ours["error"]["error"].pop("message")
    if "events" in theirs:
        assert_events(theirs.pop("events"), ours.pop("events"))
    assert ours == theirs


def assert_events(theirs: list[Any], ours: list[Any]) -> None:
    """Beginning and end are the same; how often text comes between is a matter of the clock."""
    assert ours[0] in theirs
    assert ours[-2:] == theirs[-2:]
    assert all(event in theirs for event in ours)
