"""What an answer that is no completion means: which error it becomes. Pure functions.

Sources: vLLM 0.32's `ErrorResponse` bodies, llama.cpp's `format_error_response`, OpenAI's API.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

from hexprefect.instances.endpoint import Endpoint, shown_url
from hexprefect.instances.errors import (
    InstanceError,
    InstanceRefused,
    InstanceTimeout,
    InstanceUnavailable,
    PromptRejected,
)

_CONTEXT_LENGTH = re.compile(r"(?:maximum context length is|available context size \() ?(\d+)")
_INPUT_TOKENS = re.compile(
    r"request has (\d+) input tokens|prompt contains (?:at least )?(\d+)"
    r"|\((\d+) in the messages|request \((\d+) tokens\)|requested (\d+) tokens"
)
_MESSAGE_LIMIT = 600
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SHEDDING = ("cannot accept new requests", "backlog limit", "queue")


def error_for(
    endpoint: Endpoint, status: int, body: bytes, headers: Mapping[str, str] = _NO_HEADERS
) -> InstanceError:
    """The error that an HTTP answer with a status outside 2xx stands for.

    Args:
        headers: of the answer, whatever case their names are asked for in.
    """
    details = _error_details(body)
    message = _message(endpoint, details, body)
    if status in (401, 403):
        return InstanceRefused(
            f"refused our API key ({status}: {message}).",
            instance=endpoint.name,
            status=status,
            remedy="Set the key that this server expects on the instance's block or work pool.",
        )
    if status == 408:
        return InstanceTimeout(
            f"gave up waiting ({status}: {message}).", instance=endpoint.name, status=status
        )
    if 300 <= status < 400:
        return _redirection(endpoint, status, headers.get("location", ""))
    told = headers.get("retry-after")
    # Only who cannot serve now, and will, knows when to come back.
    if status == 429 or (status == 503 and (told or _sheds_load(details))):
        return InstanceUnavailable(
            f"sheds load ({status}: {message}).",
            instance=endpoint.name,
            kind="overloaded",
            status=status,
            remedy="Admit fewer requests to it at once, or add instances.",
            retry_after_s=_retry_after_s(told, headers.get("date")),
        )
    if 400 <= status < 500:
        return _rejection(endpoint, status, details, message)
    return InstanceUnavailable(
        f"cannot serve ({status}: {message}).",
        instance=endpoint.name,
        status=status,
        remedy="Look at the server's log: its engine may have died.",
    )


def error_for_event(endpoint: Endpoint, error: Mapping[str, Any]) -> InstanceError:
    """The error that an error event inside a stream stands for."""
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return error_for(endpoint, status, json.dumps({"error": dict(error)}).encode())


def _redirection(endpoint: Endpoint, status: int, location: str) -> InstanceError:
    where = endpoint.redact(shown_url(location)) if location else "somewhere else"
    return InstanceUnavailable(
        f"redirects to {where} ({status}).",
        instance=endpoint.name,
        status=status,
        remedy="Give the URL of the model server itself: a redirection is not followed, because "
        "the key would go with it.",
    )


def _retry_after_s(told: str | None, date: str | None) -> float | None:
    """Seconds, from either form of `Retry-After`: a number of them, or a moment.

    A moment is seen from the server's own `Date`: its clock may be another than ours.
    """
    if told is None:
        return None
    if told.strip().isdecimal():
        return float(told)
    try:
        until = parsedate_to_datetime(told)
        now = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _rejection(
    endpoint: Endpoint, status: int, details: Mapping[str, Any], message: str
) -> PromptRejected:
    n_prompt_tokens = _integer(details.get("n_prompt_tokens")) or _found(_INPUT_TOKENS, message)
    n_ctx = _integer(details.get("n_ctx")) or _found(_CONTEXT_LENGTH, message)
    too_long = (
        details.get("type") == "exceed_context_size_error"
        or details.get("code") == "context_length_exceeded"
        or details.get("param") == "input_tokens"
        or n_ctx is not None
    )
    remedy = None
    if too_long:
        remedy = "Shorten the prompt, lower the output limit, or serve with a longer context."
    elif status == 404:
        remedy = f"Check that it serves the model {endpoint.model!r} under its base URL."
    return PromptRejected(
        f"rejected the request ({status}: {message}).",
        instance=endpoint.name,
        status=status,
        remedy=remedy,
        n_prompt_tokens=n_prompt_tokens if too_long else None,
        n_ctx=n_ctx,
        too_long=too_long,
    )


def _error_details(body: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(answer, dict):
        return {}
    error = answer.get("error", answer)
    return error if isinstance(error, dict) else {"message": error}


def _message(endpoint: Endpoint, details: Mapping[str, Any], body: bytes) -> str:
    message = details.get("message") or details.get("detail")
    if message is None:
        # Not the protocol's shape (a proxy's page, say): its first words still help a person.
        message = body.decode("utf-8", errors="replace")
    # Before it is cut: of a secret that the cut goes through, its beginning would stay.
    text = " ".join(endpoint.redact(str(message)).split()).rstrip(".")
    return text[:_MESSAGE_LIMIT] or "no message"


def _sheds_load(details: Mapping[str, Any]) -> bool:
    """Whether a 503 means "not now" (vLLM's `--max-num-queued-reqs`) and no dead engine."""
    message = str(details.get("message", "")).lower()
    return any(words in message for words in _SHEDDING)


def _found(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return next((int(group) for group in match.groups() if group), None) if match else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
