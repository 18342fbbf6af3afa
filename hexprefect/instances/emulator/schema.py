"""The bodies of requests as vLLM declares them, and its words about one that does not fit.

The fields are those of vLLM 0.32's request classes that an emulator can honour or refuse; others
are ignored, as vLLM ignores what it does not know. Types are read as leniently as there: `"3"` and
`3.0` are integers, `1.5` is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

_INT64 = 2**63
_MOST_REPORTED = 10
_LONGEST_INPUT = 200

_BRACKETED = re.compile(r"[\[(]")
_INTERNAL = frozenset({"str", "int", "float", "bool", "list", "dict", "nullable", "union"})
"""Parts of an error's place that name a branch of a type rather than a field."""

BAD_REQUEST = "Bad Request"
"""Type of the errors about the shape of a body; those about its values are `BadRequestError`."""

Seed = Annotated[int, Field(ge=-_INT64, le=_INT64 - 1)]
B = TypeVar("B", bound="Body")


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


class WrongValue(ProtocolError):
    """A value that vLLM refuses; it repeats the parameter and, for most, the value."""

    def __init__(self, message: str, param: str, value: object = None) -> None:
        told = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
        super().__init__(f"{message} ({told})", param=param)


class StreamOptions(BaseModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = True


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]


class Body(BaseModel):
    """What chat completions and plain ones have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    priority: int = 0
    response_format: ResponseFormat | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    structured_outputs: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None


class ChatBody(Body):
    """Of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None


class CompletionBody(Body):
    """Of `/v1/completions`."""

    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    max_tokens: int | None = 16


class TokenizePromptBody(BaseModel):
    """Of `/tokenize`, for a text."""

    model: str | None = None
    prompt: str


class TokenizeChatBody(BaseModel):
    """Of `/tokenize`, for messages."""

    model: str | None = None
    messages: list[dict[str, Any]]


def read_json(content: bytes) -> Any:
    """The JSON in a request's body; None where there is no body.

    Raises:
        ProtocolError: it is not JSON.
    """
    if not content:
        return None
    try:
        return json.loads(content)
    except json.JSONDecodeError as odd:
        error = {
            "type": "json_invalid",
            "loc": ("body", odd.pos),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": odd.msg},
        }
        raise does_not_fit([error]) from odd
    except ValueError as odd:
        raise ProtocolError(f"There was an error parsing the body: {odd}") from odd


def check_options(body: Any) -> None:
    """What vLLM checks of a body before its types.

    Raises:
        ProtocolError: options that contradict one another.
    """
    if not isinstance(body, Mapping):
        return
    if body.get("stream_options") is not None and not body.get("stream"):
        raise WrongValue(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    structure = body.get("structured_outputs")
    if isinstance(structure, Mapping):
        kinds = sum(structure.get(kind) is not None for kind in ("json", "regex", "choice"))
        if kinds > 1:
            raise ProtocolError(
                "You can only use one kind of constraints for structured outputs "
                "('json', 'regex' or 'choice')."
            )


def fit(kind: type[B], body: Any) -> B:
    """Read a body as one of the kinds above.

    Raises:
        ProtocolError: it does not fit.
    """
    errors = misfits(kind, body)
    if errors:
        raise does_not_fit(errors)
    return kind.model_validate(body)


def misfits(kind: type[BaseModel], body: Any) -> list[dict[str, Any]]:
    """Pydantic's errors about a body, with their place seen from the request; empty if it fits."""
    if body is None:
        return [{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}]
    if not isinstance(body, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        return [{"type": "model_attributes_type", "loc": ("body",), "msg": text, "input": body}]
    try:
        kind.model_validate(body)
    except ValidationError as invalid:
        return [
            {**error, "loc": ("body", *error["loc"])} for error in invalid.errors(include_url=False)
        ]
    return []


def does_not_fit(errors: Sequence[Mapping[str, Any]]) -> ProtocolError:
    """vLLM's answer to a body that does not fit: the first ten errors, values shortened."""
    label = "error" if len(errors) == 1 else "errors"
    lines = [f"{len(errors)} validation {label}:"]
    lines += [f"  {_told(error)}" for error in errors[:_MOST_REPORTED]]
    if len(errors) > _MOST_REPORTED:
        lines.append(f"  ...and {len(errors) - _MOST_REPORTED} more {label}")
    return ProtocolError("\n".join(lines), kind=BAD_REQUEST, param=_place(errors[0]["loc"]))


def _told(error: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "type": error["type"],
        "loc": _place(error["loc"]),
        "msg": error["msg"],
        "input": _shortened(error["input"]),
    }
    return {**told, "ctx": error["ctx"]} if "ctx" in error else told


def _place(location: Sequence[str | int]) -> str:
    parts = [str(part) for part in location]
    return ".".join(part for part in parts if not _BRACKETED.search(part) and part not in _INTERNAL)


def _shortened(value: object) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}...[truncated]"
