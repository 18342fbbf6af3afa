"""What an emulated instance says: filler, recorded answers, a function's, or a real model's."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hexprefect.completion import Message, Prompt
from hexprefect.errors import CallerMistake
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.emulator.protocol import Generation, content_of, count_tokens
from hexprefect.instances.endpoint import Endpoint

_FILLER = "SELECT name, city FROM customer WHERE balance > 0 ORDER BY name; "


@dataclass(frozen=True, slots=True)
class Answer:
    """A text and how many tokens it takes to say it."""

    text: str
    output_tokens: int
    finish_reason: str = "stop"


class Content(Protocol):
    """The plug. It is asked when a request arrives, before the engine sees it."""

    async def answer(self, generation: Generation) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Filler:
    """SQL-like text of a given length.

    Args:
        output_tokens: the length, or None for as many as the request allows.
    """

    output_tokens: int | None = None

    async def answer(self, generation: Generation) -> Answer:
        """As many tokens as were asked for."""
        wanted = self.output_tokens or generation.max_tokens
        tokens = min(wanted, generation.max_tokens)
        characters = int(tokens * 3.2)
        text = (_FILLER * (characters // len(_FILLER) + 1))[:characters]
        return Answer(text, tokens, "stop" if tokens == wanted and self.output_tokens else "length")


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded answers, found by the last user message.

    Args:
        answers: the last user message → the answer.
        otherwise: asked for what was not recorded.
    """

    answers: Mapping[str, str]
    otherwise: Content = Filler()

    @classmethod
    def read(cls, path: str | Path) -> Replay:
        """From JSON lines of `{"prompt": …, "answer": …}`.

        Raises:
            CallerMistake: it cannot be read, or a line is something else.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise CallerMistake(
                f"{path} cannot be read: {why}.", remedy="Check its path."
            ) from error
        answers: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                answers[str(entry["prompt"])] = str(entry["answer"])
            except (ValueError, KeyError, TypeError, RecursionError) as odd:
                raise CallerMistake(
                    f"Line {number} of {path} is no recorded answer.",
                    remedy='Each line is {"prompt": …, "answer": …}.',
                ) from odd
        return cls(answers)

    async def answer(self, generation: Generation) -> Answer:
        """The recorded answer, or what `otherwise` says."""
        recorded = self.answers.get(last_user_message(generation))
        if recorded is None:
            return await self.otherwise.answer(generation)
        return said(recorded, generation)


@dataclass(frozen=True, slots=True)
class Computed:
    """Answers from a function of the request, plain or async."""

    function: Callable[[Generation], str | Awaitable[str]]

    async def answer(self, generation: Generation) -> Answer:
        """What the function returns."""
        text = self.function(generation)
        return said(await text if inspect.isawaitable(text) else text, generation)


@dataclass(frozen=True, slots=True)
class Behind:
    """Answers from a real model behind the emulated instance; its time comes on top.

    Args:
        client: used to reach it; the caller closes it.
        endpoint: the real server.
        timeout_s: seconds that one answer may take.
    """

    client: InstanceClient
    endpoint: Endpoint
    timeout_s: float = 300.0

    async def answer(self, generation: Generation) -> Answer:
        """What the model says, with its own token count."""
        messages = tuple(
            Message(role=message["role"], content=content_of(message))
            for message in generation.messages
        )
        prompt = Prompt(
            stage="emulated",
            messages=messages,
            max_output_tokens=generation.max_tokens,
            seed=generation.seed,
        )
        completion = await self.client.complete(self.endpoint, prompt, timeout_s=self.timeout_s)
        tokens = completion.output_tokens or count_tokens(completion.text)
        return Answer(completion.text, max(1, tokens), completion.finish_reason)


def last_user_message(generation: Generation) -> str:
    """The content of the last message that the user wrote; empty where there is none."""
    for message in reversed(generation.messages):
        if message.get("role") == "user":
            return content_of(message)
    return ""


def said(text: str, generation: Generation) -> Answer:
    """`text` as an answer, cut where the request's token limit cuts it."""
    tokens = max(1, count_tokens(text))
    if tokens <= generation.max_tokens:
        return Answer(text, tokens)
    return Answer(text[: int(generation.max_tokens * 3.2)], generation.max_tokens, "length")
