"""The one way a request reaches an instance: pooled HTTP, bounded by the request's budget."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import httpx

from hexprefect.completion import Completion, Prompt
from hexprefect.instances.answers import error_for, error_for_event
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import (
    FailureKind,
    InstanceError,
    InstanceTimeout,
    InstanceUnavailable,
    PromptRejected,
)
from hexprefect.instances.load import InstanceLoad, read_load
from hexprefect.instances.transport import FRESH_CONNECTION, PoolPerServer
from hexprefect.instances.wire import (
    ODD,
    StreamedAnswer,
    UnreadableAnswer,
    read_completion,
    read_event,
    request_body,
    server_sent_events,
)

_COMPLETIONS = "/v1/chat/completions"
_NO_SUCH_ROUTE = (404, 405, 501)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How much one client may hold open, and how long it waits for a connection.

    Args:
        max_connections: open connections to one server at most; requests beyond it wait.
        max_idle_connections: idle connections kept for one server.
        idle_expiry_s: seconds after which an idle connection is closed.
        connect_timeout_s: seconds to wait for a server to accept a connection.
    """

    max_connections: int = 4096
    max_idle_connections: int = 256
    idle_expiry_s: float = 4.0
    connect_timeout_s: float = 3.0


@dataclass(frozen=True, slots=True)
class HealthReport:
    """What one look at a server's health route showed."""

    healthy: bool
    detail: str
    took_s: float
    kind: FailureKind | None = None
    """The sort of failure, where it is not healthy."""


class InstanceClient:
    """Sends prompts to instances. One client serves a whole process, on one event loop.

    Cancelling a call closes its connection at once, whereupon the server stops generating.
    """

    def __init__(self, *, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self._http = httpx.AsyncClient(
            transport=PoolPerServer(
                max_connections=self._limits.max_connections,
                max_idle_connections=self._limits.max_idle_connections,
                idle_expiry_s=self._limits.idle_expiry_s,
            ),
            # The environment's proxies and .netrc are not for model servers.
            trust_env=False,
            follow_redirects=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection; calls in flight fail."""
        await self._http.aclose()

    async def complete(
        self, endpoint: Endpoint, prompt: Prompt, *, timeout_s: float, priority: int | None = None
    ) -> Completion:
        """Have `endpoint` complete `prompt`, in at most `timeout_s` seconds altogether.

        Args:
            priority: vLLM's priority, lower first; not sent to other servers.

        Raises:
            InstanceUnavailable, InstanceTimeout: the request may be tried on another instance.
            PromptRejected: the request is at fault.
            InstanceRefused: the key is wrong.
        """
        body = request_body(endpoint, prompt, priority=priority)
        started = time.perf_counter()
        async with self._answer(endpoint, "POST", _COMPLETIONS, timeout_s, body) as answer:
            content = await answer.aread()
        ran_s = _since(started)
        return _read(endpoint, content, lambda a: read_completion(endpoint, a, ran_s=ran_s))

    async def stream(
        self,
        endpoint: Endpoint,
        prompt: Prompt,
        *,
        timeout_s: float,
        priority: int | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Completion:
        """As `complete`, collecting a streamed answer.

        The completion's `extra["time_to_first_token_s"]` counts from the call. `on_text` is given
        each piece of text as it arrives.

        Raises:
            As `complete`; an error event inside the stream counts as the answer, whatever follows.
        """
        body = request_body(endpoint, prompt, priority=priority, stream=True)
        started = time.perf_counter()
        collected = StreamedAnswer(endpoint)
        async with self._answer(endpoint, "POST", _COMPLETIONS, timeout_s, body) as answer:
            async for data in server_sent_events(answer.aiter_bytes()):
                if data == "[DONE]":
                    break
                try:
                    added = collected.take(read_event(data), elapsed_s=_since(started))
                except UnreadableAnswer as odd:
                    raise _not_a_completion(endpoint, str(odd)) from odd
                if collected.error is not None:
                    raise error_for_event(endpoint, collected.error)
                if added and on_text is not None:
                    on_text(added)
        if collected.finish_reason is None:
            raise InstanceUnavailable(
                "closed the stream before the answer was finished.",
                instance=endpoint.name,
                kind="died",
            )
        return collected.completion(ran_s=_since(started))

    async def health(self, endpoint: Endpoint, *, timeout_s: float = 5.0) -> HealthReport:
        """Ask the server whether it is well. Never raises an `InstanceError`.

        A draining vLLM still says that it is; a plain OpenAI-compatible server has no health route
        and is asked for its models instead, as is any that turns out to have none.
        """
        started = time.perf_counter()
        asked = ["/v1/models"] if endpoint.speaks == "openai" else ["/v1/models", "/health"]
        while True:
            path = asked.pop()
            try:
                async with self._answer(
                    endpoint, "GET", path, timeout_s - _since(started)
                ) as answer:
                    await answer.aread()
            except InstanceError as failure:
                if failure.status in _NO_SUCH_ROUTE and asked:
                    continue
                return HealthReport(False, failure.problem, _since(started), failure.kind)
            return HealthReport(True, "ok", _since(started))

    async def models(self, endpoint: Endpoint, *, timeout_s: float = 5.0) -> tuple[str, ...]:
        """The names of the models that the server offers.

        Raises:
            InstanceError: as `complete`.
        """
        async with self._answer(endpoint, "GET", "/v1/models", timeout_s) as answer:
            content = await answer.aread()
        return _read(endpoint, content, lambda a: tuple(str(model["id"]) for model in a["data"]))

    async def tokenize(
        self, endpoint: Endpoint, text: str, *, timeout_s: float = 10.0
    ) -> int | None:
        """How many tokens `text` is, by the server's tokenizer; None where it has no such route.

        Raises:
            InstanceError: as `complete`.
        """
        if endpoint.speaks == "openai":
            return None
        body: dict[str, Any] = (
            {"content": text, "add_special": False}
            if endpoint.speaks == "llama.cpp"
            else {"model": endpoint.model, "prompt": text, "add_special_tokens": False}
        )
        async with self._answer(endpoint, "POST", "/tokenize", timeout_s, body) as answer:
            content = await answer.aread()
        return _read(endpoint, content, lambda a: len(a["tokens"]))

    async def load(self, endpoint: Endpoint, *, timeout_s: float = 5.0) -> InstanceLoad:
        """What the server itself says it is doing, from its `/metrics`, whoever asked for it.

        Raises:
            InstanceError: as `complete`; `PromptRejected` where the server has no metrics that can
                be read.
        """
        async with self._answer(endpoint, "GET", "/metrics", timeout_s) as answer:
            content = await answer.aread()
        try:
            return read_load(content.decode("utf-8", errors="replace"))
        except ValueError as odd:
            raise PromptRejected(
                "answers its /metrics with something else than metrics.", instance=endpoint.name
            ) from odd

    @asynccontextmanager
    async def _answer(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        timeout_s: float,
        body: dict[str, Any] | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """The open answer to one request: 2xx, or an `InstanceError` is raised.

        All that the caller does with the answer is under the same `timeout_s`.
        """
        if timeout_s <= 0:
            raise _out_of_time(endpoint, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._send(endpoint, method, path, timeout_s, body)
                try:
                    if not 200 <= answer.status_code < 300:
                        content = await answer.aread()
                        raise error_for(endpoint, answer.status_code, content, answer.headers)
                    yield answer
                finally:
                    await answer.aclose()
        except TimeoutError as late:
            raise _out_of_time(endpoint, timeout_s) from late
        except (httpx.HTTPError, httpx.StreamError) as failure:
            _raise_for(endpoint, failure, timeout_s)

    async def _send(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        timeout_s: float,
        body: dict[str, Any] | None,
    ) -> httpx.Response:
        """Send once, and once more if a connection kept from before turned out to be dead.

        A server may close an idle connection in the very moment that we choose it. That it died
        before the first byte of an answer says nothing about the server or the request, provided
        the connection had been used before; a new connection that dies so is a failure.
        """
        content = None if body is None else _encoded(body)
        kind = {} if content is None else {"Content-Type": "application/json"}
        for fresh in (False, True):
            opened = _OpeningSeen()
            request = self._http.build_request(
                method,
                endpoint.route(path),
                headers={**endpoint.headers(), **kind},
                content=content,
                timeout=httpx.Timeout(
                    timeout_s, connect=min(timeout_s, self._limits.connect_timeout_s)
                ),
                extensions={"trace": opened, FRESH_CONNECTION: fresh},
            )
            try:
                return await self._http.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if fresh or opened.new_connection or opened.answer_began:
                    raise
        raise AssertionError("unreachable: the second attempt returns or raises")


class _OpeningSeen:
    """A trace hook that remembers whether a connection was opened and whether an answer began."""

    def __init__(self) -> None:
        self.new_connection = False
        self.answer_began = False

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self.new_connection = True
        elif event == "http11.receive_response_headers.complete":
            self.answer_began = True


def _encoded(body: dict[str, Any]) -> bytes:
    """A body as bytes. Half a character, as broken text in a database has it, becomes `?`."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", errors="replace")


def _read(endpoint: Endpoint, content: bytes, reader: Callable[[Any], _T]) -> _T:
    try:
        return reader(json.loads(content))
    except ODD as odd:
        raise _not_a_completion(endpoint, str(odd)) from odd


def _not_a_completion(endpoint: Endpoint, what: str) -> InstanceUnavailable:
    return InstanceUnavailable(
        f"answered with something else than the OpenAI protocol ({endpoint.redact(what)}).",
        instance=endpoint.name,
        remedy="Check that its URL points at the model server and not at a proxy's page.",
    )


def _out_of_time(endpoint: Endpoint, timeout_s: float) -> InstanceTimeout:
    return InstanceTimeout(
        f"did not finish within the {max(timeout_s, 0.0):.3g} s that the request had left.",
        instance=endpoint.name,
    )


def _raise_for(endpoint: Endpoint, failure: Exception, timeout_s: float) -> NoReturn:
    """Turn a transport failure into the error that says what to do about it."""
    what = endpoint.redact(str(failure) or type(failure).__name__).rstrip(".")
    if isinstance(failure, httpx.ConnectError):
        raise InstanceUnavailable(
            f"cannot be reached ({what}).",
            instance=endpoint.name,
            kind="refused",
            remedy="Start the server, or correct the instance's URL.",
        ) from failure
    if isinstance(failure, httpx.ConnectTimeout):
        raise InstanceUnavailable(
            "did not accept a connection in time.",
            instance=endpoint.name,
            kind="timeout",
            remedy="Check that its host is up and reachable.",
        ) from failure
    if isinstance(failure, httpx.PoolTimeout):
        raise InstanceTimeout(
            f"got no free connection within {timeout_s:.3g} s.",
            instance=endpoint.name,
            remedy="Raise max_connections, or admit fewer requests at once.",
        ) from failure
    if isinstance(failure, httpx.TimeoutException):
        raise _out_of_time(endpoint, timeout_s) from failure
    raise InstanceUnavailable(
        f"the connection died ({what}).", instance=endpoint.name, kind="died"
    ) from failure


def _since(started: float) -> float:
    return time.perf_counter() - started
