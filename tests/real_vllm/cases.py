"""The requests, good and bad, that every server is asked; and what is compared of an answer.

`{model}` in a body stands for the name under which a server serves its model. Every server has a
context of 2048 tokens, and tells what it was not asked about nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

CONTEXT_TOKENS = 2048
ASK = [{"role": "user", "content": "How many singers are there?"}]
LONG = [{"role": "user", "content": "SELECT name FROM singer; " * 800}]
SCHEMA = {
    "type": "object",
    "properties": {"verdict": {"enum": ["yes", "no"]}},
    "required": ["verdict"],
    "additionalProperties": False,
}
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Case:
    """One request."""

    name: str
    path: str
    body: Any = None
    method: str = "POST"
    raw: bytes | None = None
    """Sent instead of a body, as it is."""
    content_type: str = "application/json"


def chat(name: str, **body: Any) -> Case:
    """A chat completion of a few tokens, changed by `body`."""
    return Case(name, CHAT, {"model": "{model}", "messages": ASK, "max_tokens": 4, **body})


CASES = (
    # -- good ----------------------------------------------------------------------------------
    chat("chat"),
    chat("chat with a system message", messages=[{"role": "system", "content": "SQL."}, *ASK]),
    chat(
        "chat with content parts",
        messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    ),
    chat(
        "chat with an answer before", messages=[*ASK, {"role": "assistant", "content": "6"}, *ASK]
    ),
    chat("chat with a seed and a temperature", seed=7, temperature=0.7, top_p=0.9),
    chat("chat with max_completion_tokens", max_tokens=None, max_completion_tokens=3),
    chat("chat with a priority", priority=-3),
    chat("chat with a whole number as a float priority", priority=2.0),
    chat("chat with a priority as text", priority="3"),
    chat("chat with a stop word", stop=[";"]),
    chat("chat with an unknown field", guided_regex="[0-9]", best_guess=True),
    chat(
        "chat with a JSON object as format", response_format={"type": "json_object"}, max_tokens=8
    ),
    chat(
        "chat with a JSON schema as format",
        response_format={"type": "json_schema", "json_schema": {"name": "v", "schema": SCHEMA}},
        max_tokens=32,
    ),
    chat("chat with a choice", structured_outputs={"choice": ["yes", "no"]}, max_tokens=8),
    chat(
        "chat with a null limit",
        max_tokens=None,
        messages=[{"role": "user", "content": "SELECT name FROM singer; " * 20}],
    ),
    chat("chat with a null stream", stream=None),
    chat("chat of two choices", n=2),
    chat("streamed chat", stream=True),
    chat("streamed chat with usage", stream=True, stream_options={"include_usage": True}),
    Case(
        "completion", "/v1/completions", {"model": "{model}", "prompt": "SELECT", "max_tokens": 4}
    ),
    Case(
        "streamed completion with usage",
        "/v1/completions",
        {
            "model": "{model}",
            "prompt": "SELECT",
            "max_tokens": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    Case("chat without a model", CHAT, {"messages": ASK, "max_tokens": 2}),
    Case("chat with a null model", CHAT, {"model": None, "messages": ASK, "max_tokens": 2}),
    # -- bad -----------------------------------------------------------------------------------
    chat("chat with another model", model="another"),
    Case("chat without messages", CHAT, {"model": "{model}"}),
    chat("chat with no message", messages=[]),
    chat("chat with messages as text", messages="How many?"),
    chat("chat with a message without a role", messages=[{"content": "x"}]),
    chat("chat with an unknown role", messages=[{"role": "robot", "content": "x"}]),
    chat("chat with a message without content", messages=[{"role": "user"}]),
    chat("chat with no token allowed", max_tokens=0),
    chat("chat with a negative limit", max_tokens=-1),
    chat("chat with a limit as words", max_tokens="many"),
    chat("chat with a limit beyond the context", max_tokens=5000),
    chat("chat with a limit of the whole context", max_tokens=2048),
    chat(
        "chat with a prompt that leaves too little room",
        messages=[{"role": "user", "content": "SELECT name FROM singer; " * 120}],
        max_tokens=2000,
    ),
    chat("chat with too long a prompt", messages=LONG),
    chat("chat with a limit of one and a half", max_tokens=1.5),
    chat("chat with a null priority", priority=None),
    chat("chat with a limit and a half of choices", n=1.5),
    chat("chat with a seed in words", seed="lucky"),
    chat("chat with a stop of numbers", stop=[1]),
    chat("chat with a priority of one and a half", priority=1.5),
    chat("chat with a priority in words", priority="high"),
    chat("chat with a stream in words", stream="perhaps"),
    chat("chat with a negative temperature", temperature=-1),
    chat("chat with a temperature in words", temperature="warm"),
    chat("chat with too large a top_p", top_p=2),
    chat("chat of no choices", n=0),
    chat("chat with stream options and no stream", stream_options={"include_usage": True}),
    chat("chat with a bad grammar", structured_outputs={"grammar": "this is no grammar ::= ("}),
    chat("chat with two kinds of structure", structured_outputs={"choice": ["a"], "regex": "b"}),
    chat("chat with an unknown format", response_format={"type": "yaml"}),
    chat("streamed chat with too long a prompt", messages=LONG, stream=True),
    Case("chat that is not JSON", CHAT, raw=b'{"messages": ['),
    Case("chat that is a list", CHAT, raw=b"[]"),
    Case("chat that is empty", CHAT, raw=b""),
    Case("chat as plain text", CHAT, raw=b"{}", content_type="text/plain"),
    Case("chat by GET", CHAT, method="GET"),
    Case("completion without a prompt", "/v1/completions", {"model": "{model}", "max_tokens": 2}),
    Case(
        "completion of a number",
        "/v1/completions",
        {"model": "{model}", "prompt": 7, "max_tokens": 2},
    ),
    Case(
        "completion of nothing",
        "/v1/completions",
        {"model": "{model}", "prompt": "", "max_tokens": 2},
    ),
    Case("an unknown route", "/v1/nothing", {}),
    # -- the rest ------------------------------------------------------------------------------
    Case("the models", "/v1/models", method="GET"),
    Case("health", "/health", method="GET"),
    Case("ping", "/ping", method="GET"),
    Case("load", "/load", method="GET"),
    Case("version", "/version", method="GET"),
    Case("tokenize a prompt", "/tokenize", {"model": "{model}", "prompt": "SELECT 1"}),
    Case("tokenize messages", "/tokenize", {"model": "{model}", "messages": ASK}),
    Case("tokenize nothing", "/tokenize", {"model": "{model}"}),
    Case("tokenize for another model", "/tokenize", {"model": "another", "prompt": "x"}),
)


def with_model(value: Any, model: str) -> Any:
    """`value` with the name of the model put in."""
    return json.loads(json.dumps(value).replace('"{model}"', json.dumps(model)))


async def ask(http: httpx.AsyncClient, url: str, case: Case, *, model: str) -> dict[str, Any]:
    """Send one request; what is recorded of the answer."""
    content = case.raw
    if content is None and case.body is not None:
        content = json.dumps(with_model(case.body, model)).encode()
    answer = await http.request(
        case.method,
        url + case.path,
        content=content,
        headers={"content-type": case.content_type} if content is not None else {},
    )
    kind = answer.headers.get("content-type", "")
    record: dict[str, Any] = {
        "status": answer.status_code,
        "content_type": kind.split(";")[0],
    }
    if kind.startswith("text/event-stream"):
        record["events"] = events_of(answer.text)
    elif answer.content:
        body = answer.json()
        if answer.is_success:
            record["fields"] = fields_of(body)
        else:
            record["error"] = body
    return record


def events_of(text: str) -> list[Any]:
    """What a stream tells: the fields of its events, those that are alike named once."""
    told: list[Any] = []
    for line in text.split("\n"):
        if line.startswith("data:"):
            data = line[5:].strip()
            event = data if data == "[DONE]" else fields_of(json.loads(data))
            if not told or told[-1] != event:
                told.append(event)
    return told


def fields_of(value: Any) -> Any:
    """The names of all fields with the kinds of their values; of a list, its first item's."""
    if isinstance(value, dict):
        return {key: fields_of(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [fields_of(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return "number" if isinstance(value, int | float) else "text"
