"""What every room means by one LLM call: the prompt that goes in and the completion that comes out.

This module imports nothing of the project, so that the agent (which knows no Prefect and no store),
the HTTP client and the queue can share these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class PrefixSegment:
    """A leading part of the prompt that other prompts share, outermost first.

    `key` names its content (for example `static:candidate_generation` or `schema:<fingerprint>`):
    two prompts whose leading keys are equal share that many tokens of an instance's prefix cache.
    """

    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """One LLM call, before it is sent."""

    stage: str
    """Which kind of call this is, for example `candidate_generation`."""
    messages: tuple[Message, ...]
    max_output_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    response_format: Mapping[str, Any] | None = None
    """OpenAI's `response_format`; portable between vLLM and llama.cpp."""
    prefix: tuple[PrefixSegment, ...] = ()
    """The shared leading segments, static text first, then the database schema."""
    branch: str | None = None
    """Which parallel chain of the query this call belongs to, for example `candidate-1`."""

    @property
    def characters(self) -> int:
        """Length of all messages, in characters."""
        return sum(len(message.content) for message in self.messages)

    def estimated_input_tokens(self) -> int:
        """Input tokens, estimated before any tokenizer has seen the text.

        3.2 characters a token is what Qwen2.5-Coder needs for DDL and SQL prose; 4 tokens of chat
        template surround each message.
        """
        return max(1, round(self.characters / 3.2) + 4 * len(self.messages))


@dataclass(frozen=True, slots=True)
class Completion:
    """What an instance answered."""

    text: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Input tokens the instance found in its prefix cache; 0 where it does not tell."""
    finish_reason: str = "stop"
    ran_s: float = 0.0
    """Seconds from sending the request to the last byte of the answer."""
    instance: str = ""
    request_id: str = ""
    waited_s: float = 0.0
    """Seconds spent in the queue before the instance took the request."""
    attempt: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)


class Complete(Protocol):
    """Something that completes a prompt: the scheduler in production, a plain function in tests."""

    async def __call__(self, prompt: Prompt) -> Completion: ...
