"""The emulator against llama.cpp's server: where they agree, where not, and that the client copes.

llama.cpp is another server with other habits. What it was recorded to answer to the requests of
`cases` is in `answers_of_llama_cpp.json`; every difference in status is listed here, so that one
that comes or goes is noticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from hexprefect.instances.answers import error_for
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.local_model import ensure_model_async
from hexprefect.instances.local_server import LocalServer
from tests.real_vllm.cases import CASES, CONTEXT_TOKENS, Case, ask

HERE = Path(__file__).parent
VLLM: dict[str, Any] = json.loads((HERE / "answers_of_vllm_0_32.json").read_text("utf-8"))
LLAMA: dict[str, Any] = json.loads((HERE / "answers_of_llama_cpp.json").read_text("utf-8"))

TOO_LONG_FOR_A_PROCESSOR = "chat with a prompt that leaves too little room"
"""Its answer fills the context: minutes, where llama.cpp runs."""

ASKED = [case for case in CASES if case.name != TOO_LONG_FOR_A_PROCESSOR]

LENIENT = {
    "chat with another model",
    "chat with no message",
    "chat with no token allowed",
    "chat with a negative limit",
    "chat with a limit beyond the context",
    "chat with a limit of one and a half",
    "chat with a null priority",
    "chat with a limit and a half of choices",
    "chat with a priority of one and a half",
    "chat with a priority in words",
    "chat with a negative temperature",
    "chat with too large a top_p",
    "chat with stream options and no stream",
    "chat with a bad grammar",
    "chat with two kinds of structure",
    "completion of nothing",
    "tokenize nothing",
    "tokenize for another model",
}
"""What vLLM refuses, with 400 or 404, and llama.cpp answers: it ignores `priority` and
`structured_outputs`, serves any model's name, and reads numbers as they come."""

OTHERWISE = {
    "chat with a message without a role": (400, 500),
    "chat with a message without content": (200, 400),
    "chat by GET": (405, 404),
    "ping": (200, 404),
    "load": (200, 404),
    "version": (200, 404),
}
"""Other differences: what vLLM says, and what llama.cpp says."""

READ_BY_THE_CLIENT = {
    "choices": [{"finish_reason": "text", "message": {"content": "text"}}],
    "id": "text",
    "usage": {"completion_tokens": "number", "prompt_tokens": "number"},
}


def differing(case: str) -> tuple[int, int] | None:
    """The statuses of vLLM and of llama.cpp, where they are known to differ."""
    return (VLLM[case]["status"], 200) if case in LENIENT else OTHERWISE.get(case)


def contains(whole: Any, part: Any) -> bool:
    """Whether a record of fields has at least these."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return bool(whole) and contains(whole[0], part[0])
    return bool(whole == part)


def test_most_of_the_requests_are_answered_alike() -> None:
    assert set(LLAMA) == {case.name for case in ASKED}
    assert LENIENT | set(OTHERWISE) < set(LLAMA)
    assert len(set(LLAMA) - LENIENT - set(OTHERWISE)) >= 45


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_the_statuses_are_those_of_vllm_but_for_the_differences_listed(case: Case) -> None:
    theirs, ours = LLAMA[case.name]["status"], VLLM[case.name]["status"]
    known = differing(case.name)
    assert (ours, theirs) == (known if known is not None else (ours, ours))


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_what_the_client_reads_is_in_both(case: Case) -> None:
    theirs, ours = LLAMA[case.name], VLLM[case.name]
    if theirs["status"] != ours["status"]:
        return
    if "error" in theirs:
        vllm, llama = (
            error_for(
                Endpoint("m", "http://127.0.0.1:1", "tiny", speaks=speaks),
                answer["status"],
                json.dumps(answer["error"]).encode(),
            )
            for answer, speaks in ((ours, "vllm"), (theirs, "llama.cpp"))
        )
        assert type(vllm) is type(llama)
        assert vllm.kind == llama.kind
        assert getattr(vllm, "too_long", None) == getattr(llama, "too_long", None)
    elif "choices" in ours.get("fields", {}) and "message" in ours["fields"]["choices"][0]:
        assert contains(ours["fields"], READ_BY_THE_CLIENT)
        assert contains(theirs["fields"], READ_BY_THE_CLIENT)
    elif "events" in ours:
        assert ours["events"][-1] == theirs["events"][-1] == "[DONE]"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_the_real_llama_cpp_still_answers_as_recorded() -> None:
    model = await ensure_model_async("0.5B")
    server = LocalServer("llama", model, slots=2, context_tokens=CONTEXT_TOKENS, model_name="tiny")
    async with server as endpoint, httpx.AsyncClient(trust_env=False, timeout=300) as http:
        for case in ASKED:
            answer = await ask(http, endpoint.url, case, model="tiny")
            assert (case.name, answer["status"]) == (case.name, LLAMA[case.name]["status"])
            assert answer.get("error") == LLAMA[case.name].get("error")
