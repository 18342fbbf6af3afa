"""vLLM's OpenAI routes as values: what a request asks for, and the bodies of answers and errors.

Modelled on vLLM 0.32: unknown fields are ignored, a wrong type is a 400 `BadRequestError`, an
unknown model a 404 `NotFoundError`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hexprefect.instances.emulator.blocks import BLOCK_TOKENS, BlockHash

CHARACTERS_PER_TOKEN = 3.2
_BLOCK_CHARACTERS = BLOCK_TOKENS * CHARACTERS_PER_TOKEN


class ProtocolError(Exception):
    """A request that vLLM would answer with an error."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.kind, self.param = message, status, kind, param

    def body(self) -> dict[str, Any]:
        """vLLM's `ErrorResponse`."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request asks for."""

    chat: bool
    """Whether it came to `/v1/chat/completions` rather than `/v1/completions`."""
    messages: tuple[Mapping[str, Any], ...]
    """A plain completion's prompt is one user message."""
    text: str
    """The prompt as the model would see it."""
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    stream: bool = False
    include_usage: bool = False
    seed: int | None = None

    def block_hashes(self) -> tuple[BlockHash, ...]:
        """One hash for each full block, of all the text up to the block's end."""
        hashes: list[BlockHash] = []
        chained: BlockHash = 0
        for block in range(self.prompt_tokens // BLOCK_TOKENS):
            start, end = round(block * _BLOCK_CHARACTERS), round((block + 1) * _BLOCK_CHARACTERS)
            chained = hash((chained, self.text[start:end]))
            hashes.append(chained)
        return tuple(hashes)


def count_tokens(text: str) -> int:
    """A cheap, deterministic estimate: 3.2 characters a token, as for DDL and SQL prose."""
    return max(1, math.ceil(len(text) / CHARACTERS_PER_TOKEN)) if text else 0


def parse_generation(
    content: bytes, *, chat: bool, model: str, max_model_len: int, policy: str
) -> Generation:
    """Read and check the body of a completion request.

    Raises:
        ProtocolError: as vLLM would.
    """
    body = read_object(content)
    check_model(body, model)
    if chat:
        messages = _messages(body)
        text = "".join(f"<|{m['role']}|>{_content(m)}<|end|>" for m in messages) + "<|assistant|>"
    else:
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt:
            raise _invalid("prompt", "Input should be a valid string")
        messages, text = ({"role": "user", "content": prompt},), prompt
    prompt_tokens = count_tokens(text)
    options = body.get("stream_options")
    return Generation(
        chat=chat,
        messages=messages,
        text=text,
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(body, prompt_tokens, max_model_len, default=None if chat else 16),
        priority=_integer(body, "priority", default=0) if policy == "priority" else 0,
        stream=_boolean(body, "stream"),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        seed=_integer(body, "seed", default=0) if body.get("seed") is not None else None,
    )


def read_object(content: bytes) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ProtocolError: it is none.
    """
    try:
        body = json.loads(content)
    except ValueError as odd:
        raise ProtocolError(f"1 validation error: JSON decode error: {odd}") from odd
    if not isinstance(body, dict):
        raise ProtocolError("1 validation error: Input should be a valid dictionary")
    return body


def check_model(body: Mapping[str, Any], model: str) -> None:
    """Refuse another model than the one that is served; none at all is fine, as in vLLM."""
    asked = body.get("model")
    if asked is not None and asked != model:
        raise ProtocolError(
            f"The model `{asked}` does not exist.", status=404, kind="NotFoundError", param="model"
        )


def _messages(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    messages = body.get("messages")
    if messages is None:
        raise _invalid("messages", "Field required")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise _invalid("messages", "Input should be a valid list")
    if not messages:
        raise _invalid("messages", "List should have at least 1 item")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise _invalid("messages.role", "Field required")
    return tuple(messages)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _max_tokens(
    body: Mapping[str, Any], prompt_tokens: int, max_model_len: int, *, default: int | None
) -> int:
    if prompt_tokens >= max_model_len:
        raise ProtocolError(
            f"This model's maximum context length is {max_model_len} tokens. However, your request "
            f"has {prompt_tokens} input tokens. Please reduce the length of the input messages.",
            param="input_tokens",
        )
    name = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    if body.get(name) is None:
        return min(default or max_model_len, max_model_len - prompt_tokens)
    asked = _integer(body, name, default=0)
    if asked < 1:
        raise ProtocolError(f"{name} must be at least 1, got {asked}.", param=name)
    if prompt_tokens + asked > max_model_len:
        raise ProtocolError(
            f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum "
            f"context length is {max_model_len} tokens and your request has {prompt_tokens} input "
            f"tokens ({asked} > {max_model_len} - {prompt_tokens}).",
            param="max_tokens",
        )
    return asked


def _integer(body: Mapping[str, Any], name: str, *, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(name, "Input should be a valid integer")
    return value


def _boolean(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _invalid(name, "Input should be a valid boolean")
    return value


def _invalid(name: str, message: str) -> ProtocolError:
    return ProtocolError(f"1 validation error: {message}: ('body', '{name}')", param=name)
