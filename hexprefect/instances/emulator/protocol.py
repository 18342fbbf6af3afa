"""vLLM's OpenAI routes as values: what a request asks for, and what is wrong with it.

Held to the recorded answers of vLLM 0.32: what does not fit is refused in its words, a value that
makes no sense too, an unknown model is a 404. An output limit beyond the context that is left is
cut down, not refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexprefect.instances.emulator.blocks import BLOCK_TOKENS, BlockHash
from hexprefect.instances.emulator.schema import (
    BAD_REQUEST,
    Body,
    ChatBody,
    CompletionBody,
    ProtocolError,
    TokenizeChatBody,
    TokenizePromptBody,
    WrongValue,
    check_options,
    does_not_fit,
    fit,
    misfits,
    read_json,
)

__all__ = [
    "Generation",
    "ProtocolError",
    "check_content_type",
    "content_of",
    "count_tokens",
    "parse_generation",
    "parse_tokenize",
    "read_object",
]

CHARACTERS_PER_TOKEN = 3.2
_BLOCK_CHARACTERS = BLOCK_TOKENS * CHARACTERS_PER_TOKEN
_QUOTED = re.compile(r'"(?:[^"\\\\]|\\\\.)*"')
_RULE = re.compile(r"(?:\s*(?:#|//).*\n)*\s*[?!]?[\w.-]+\s*(?:::=|:)")


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
    choices: int = 1

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


def check_content_type(header: str | None) -> None:
    """Refuse a body that does not say that it is JSON.

    Raises:
        ProtocolError: as vLLM would.
    """
    kind = (header or "application/json").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ProtocolError(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            kind=BAD_REQUEST,
        )


def parse_generation(
    content: bytes, *, chat: bool, model: str, max_model_len: int, policy: str
) -> Generation:
    """Read and check the body of a completion request, in the order in which vLLM does.

    Raises:
        ProtocolError: as vLLM would.
    """
    given = read_json(content)
    check_options(given)
    body = fit(ChatBody, given) if chat else fit(CompletionBody, given)
    _check_model(body.model, model)
    messages, text = _chat_prompt(body) if isinstance(body, ChatBody) else _prompt(body)
    limit, name = _output_limit(body)
    if limit is not None and limit > max_model_len:
        raise WrongValue(
            f"{name}={limit} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            param=name,
            value=limit,
        )
    prompt_tokens = _count_prompt(text, max_model_len)
    room = max_model_len - prompt_tokens
    allowed = room if limit is None else min(limit, room)
    _check_values(body, allowed)
    return Generation(
        chat=chat,
        messages=messages,
        text=text,
        prompt_tokens=prompt_tokens,
        max_tokens=allowed,
        priority=body.priority if policy == "priority" else 0,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        seed=body.seed,
        choices=body.n or 1,
    )


def parse_tokenize(content: bytes, *, model: str) -> int:
    """Read the body of `/tokenize`; how many tokens it is.

    Raises:
        ProtocolError: as vLLM would.
    """
    given = read_json(content)
    as_prompt, as_chat = misfits(TokenizePromptBody, given), misfits(TokenizeChatBody, given)
    if as_prompt and as_chat:
        raise does_not_fit([*as_prompt, *as_chat] if isinstance(given, dict) else as_prompt)
    if not as_prompt:
        prompt = TokenizePromptBody.model_validate(given)
        _check_model(prompt.model, model)
        return count_tokens(prompt.prompt)
    chat = TokenizeChatBody.model_validate(given)
    _check_model(chat.model, model)
    return count_tokens(_rendered(chat.messages))


def read_object(content: bytes) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        ProtocolError: it is none.
    """
    body = read_json(content)
    if not isinstance(body, dict):
        raise ProtocolError("The body is not a JSON object.")
    return body


def _check_model(asked: str | None, model: str) -> None:
    """Refuse another model than the one that is served; none at all is fine."""
    if asked is not None and asked != model:
        raise ProtocolError(
            f"The model `{asked}` does not exist. Valid aliases: {model}.",
            status=404,
            kind="NotFoundError",
            param="model",
        )


def _chat_prompt(body: ChatBody) -> tuple[tuple[Mapping[str, Any], ...], str]:
    if not body.messages:
        raise ProtocolError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    for number, message in enumerate(body.messages):
        if not isinstance(message.get("role"), str):
            place = ("body", "messages", number, "ChatCompletionDeveloperMessageParam", "role")
            error = {"type": "missing", "loc": place, "msg": "Field required", "input": message}
            raise does_not_fit([error])
    return tuple(body.messages), _rendered(body.messages)


def _rendered(messages: Sequence[Mapping[str, Any]]) -> str:
    said = "".join(f"<|{message.get('role')}|>{content_of(message)}<|end|>" for message in messages)
    return said + "<|assistant|>"


def content_of(message: Mapping[str, Any]) -> str:
    """A message's text, be it one text or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _prompt(body: CompletionBody) -> tuple[tuple[Mapping[str, Any], ...], str]:
    if not body.prompt:
        raise WrongValue(
            "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt"
        )
    if not isinstance(body.prompt, str):
        raise ProtocolError("The emulator completes one text, and no tokens.", param="prompt")
    return ({"role": "user", "content": body.prompt},), body.prompt


def _output_limit(body: Body) -> tuple[int | None, str]:
    newer = body.max_completion_tokens if isinstance(body, ChatBody) else None
    return (
        (newer, "max_completion_tokens") if newer is not None else (body.max_tokens, "max_tokens")
    )


def _count_prompt(text: str, max_model_len: int) -> int:
    """The prompt's tokens. vLLM stops counting one beyond its context, and says so."""
    tokens = count_tokens(text)
    if tokens <= max_model_len:
        return tokens
    counted = max_model_len + 1
    raise WrongValue(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
        f"contains at least {counted} input tokens, which exceeds this limit even without any "
        "output tokens. Please reduce the length of the input prompt.",
        param="input_tokens",
        value=counted,
    )


def _check_values(body: Body, allowed: int) -> None:
    """What vLLM refuses of values of the right type."""
    if body.n is not None and body.n < 1:
        raise ProtocolError(f"n must be at least 1, got {body.n}.")
    if body.n is not None and body.n > 1 and body.stream:
        raise ProtocolError("The emulator streams one choice only.", param="n")
    if body.temperature is not None:
        if body.temperature < 0:
            text = f"temperature must be non-negative, got {body.temperature}."
            raise WrongValue(text, param="temperature", value=body.temperature)
        if body.temperature > 2:
            text = f"temperature must be in [0, 2], got {body.temperature}."
            raise WrongValue(text, param="temperature", value=body.temperature)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        text = f"top_p must be in (0, 1], got {body.top_p}."
        raise WrongValue(text, param="top_p", value=body.top_p)
    if allowed < 1:
        text = f"max_tokens must be at least 1, got {allowed}."
        raise WrongValue(text, param="max_tokens", value=allowed)
    _check_grammar((body.structured_outputs or {}).get("grammar"))


def _check_grammar(grammar: object) -> None:
    """Refuse what is no grammar at a glance: it begins with a rule, and its brackets match."""
    if not isinstance(grammar, str):
        return
    bare = _QUOTED.sub("", grammar)
    if not _RULE.match(bare) or bare.count("(") != bare.count(")"):
        raise ProtocolError(
            f"Invalid grammar specification: {grammar.strip().splitlines()[:1]} begins no rule."
        )
