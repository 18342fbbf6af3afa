"""The bytes' meaning: prompts to request bodies, answers to completions. Pure functions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hexprefect.completion import Completion, Prompt
from hexprefect.instances.endpoint import Endpoint

ODD: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What reading an answer may raise that is JSON of another shape, or none: a proxy may say
anything, and a deep enough nesting of brackets ends the parser itself."""

_MOST_TOKENS = 2**31 - 1
"""What a column of the store holds; no request is as long."""


class UnreadableAnswer(ValueError):
    """A 2xx answer that is no completion."""


def request_body(
    endpoint: Endpoint, prompt: Prompt, *, priority: int | None = None, stream: bool = False
) -> dict[str, Any]:
    """The JSON body of `POST /v1/chat/completions`.

    `priority` goes to vLLM only (lower is served first); other servers ignore or refuse it.
    """
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": [{"role": m.role, "content": m.content} for m in prompt.messages],
        "max_tokens": prompt.max_output_tokens,
        "temperature": prompt.temperature,
    }
    if prompt.seed is not None:
        body["seed"] = prompt.seed
    if prompt.response_format is not None:
        body["response_format"] = dict(prompt.response_format)
    if priority is not None and endpoint.speaks == "vllm":
        body["priority"] = int(priority)
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


def read_completion(endpoint: Endpoint, answer: Any, *, ran_s: float) -> Completion:
    """The completion in a whole (not streamed) answer.

    Raises:
        UnreadableAnswer: `answer` is not an OpenAI chat completion.
    """
    try:
        choice = answer["choices"][0]
        text = _text(choice["message"].get("content"))
    except ODD as odd:
        raise UnreadableAnswer(f"no choices[0].message in {_shape(answer)}") from odd
    return _completion(
        endpoint, text=text, finish_reason=choice.get("finish_reason"), tail=answer, ran_s=ran_s
    )


def _text(content: Any) -> str:
    """What a message says: a text, or parts of which those that are thoughts are left out.

    Raises:
        TypeError, AttributeError: it is neither.
    """
    if not content:
        return ""
    if isinstance(content, list):
        content = "".join(str(part["text"]) for part in content if part.get("type") == "text")
    if not isinstance(content, str):
        raise TypeError(f"a message's content is {_shape(content)}")
    return content


@dataclass(slots=True)
class StreamedAnswer:
    """A completion as it arrives, event by event."""

    endpoint: Endpoint
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    tail: dict[str, Any] = field(default_factory=dict)
    first_token_s: float | None = None
    error: Mapping[str, Any] | None = None

    def take(self, event: Any, *, elapsed_s: float) -> str:
        """Take one event in; return the text it adds.

        An error event is kept in `error`: servers send `[DONE]` after it, so that the end of the
        stream alone does not tell a death from a finish.

        Raises:
            UnreadableAnswer: it is no event of a chat completion.
        """
        if not isinstance(event, dict):
            raise UnreadableAnswer(f"a stream event is {_shape(event)}")
        if event.get("error"):
            error = event["error"]
            self.error = error if isinstance(error, Mapping) else {"message": str(error)}
            return ""
        for key in ("id", "usage", "timings", "metrics"):
            if event.get(key) is not None:
                self.tail[key] = event[key]
        added = ""
        try:
            for choice in event.get("choices") or ():
                added += _text((choice.get("delta") or {}).get("content"))
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
        except ODD as odd:
            raise UnreadableAnswer(f"no choices[].delta in {_shape(event)}") from odd
        if added:
            self.text.append(added)
            if self.first_token_s is None:
                self.first_token_s = elapsed_s
        return added

    def completion(self, *, ran_s: float) -> Completion:
        """The whole, once the stream has ended with a finish reason."""
        extra = {} if self.first_token_s is None else {"time_to_first_token_s": self.first_token_s}
        return _completion(
            self.endpoint,
            text="".join(self.text),
            finish_reason=self.finish_reason,
            tail=self.tail,
            ran_s=ran_s,
            extra=extra,
        )


async def server_sent_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The `data` of each event in a byte stream.

    Lines end with a line feed and nothing else: `str.splitlines`, as general HTTP clients use it,
    would also cut at U+2028 and U+0085, which may stand unescaped inside a JSON string.
    """
    pending = b""
    async for chunk in chunks:
        pending += chunk
        if b"\n" not in chunk:
            continue
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip(b" \r").decode("utf-8", errors="replace")
    if pending.startswith(b"data:"):
        yield pending[5:].strip(b" \r").decode("utf-8", errors="replace")


def read_event(data: str) -> Any:
    """The JSON of one stream event.

    Raises:
        UnreadableAnswer: it is not JSON.
    """
    try:
        return json.loads(data)
    except ODD as odd:
        raise UnreadableAnswer("a stream event is not JSON") from odd


def _completion(
    endpoint: Endpoint,
    *,
    text: str,
    finish_reason: object,
    tail: Mapping[str, Any],
    ran_s: float,
    extra: Mapping[str, Any] | None = None,
) -> Completion:
    usage = _object(tail.get("usage"))
    details = _object(usage.get("prompt_tokens_details"))
    timings = _object(tail.get("timings"))
    kept: dict[str, Any] = {
        key: found for key in ("timings", "metrics") if (found := _object(tail.get(key)))
    }
    kept.update(extra or {})
    input_tokens = _count(usage.get("prompt_tokens"))
    cached_tokens = _count(details.get("cached_tokens")) or _count(timings.get("cache_n"))
    return Completion(
        # Half characters, of which a stream may send one in each event, are joined.
        text=text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        input_tokens=input_tokens,
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=min(cached_tokens, input_tokens),
        finish_reason=finish_reason if finish_reason and isinstance(finish_reason, str) else "stop",
        ran_s=ran_s,
        instance=endpoint.name,
        request_id=str(tail.get("id") or ""),
        extra=kept,
    )


def _object(value: Any) -> Mapping[str, Any]:
    """A part of an answer that may be missing, or be anything: only an object is believed."""
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int:
    """A number of tokens; 0 where the server tells none, or one that cannot be."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and 0 <= value <= _MOST_TOKENS else 0


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return "an object with keys " + ", ".join(sorted(map(str, value))[:8])
    return f"a {type(value).__name__}"
