"""The HTTP face of an emulated instance: vLLM's routes, errors and streams, as an ASGI app."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hexprefect.errors import CallerMistake
from hexprefect.instances.emulator import bodies
from hexprefect.instances.emulator.fault import Fault
from hexprefect.instances.emulator.instance import EmulatedInstance, EngineDead
from hexprefect.instances.emulator.protocol import (
    Generation,
    ProtocolError,
    check_content_type,
    parse_generation,
    parse_tokenize,
    read_object,
)

_DEAD = ProtocolError(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    status=500,
    kind="InternalServerError",
)
_TOLD_TO_FAIL = ProtocolError(
    "Internal server error (emulated).", status=500, kind="InternalServerError"
)


class ConnectionBroken(Exception):
    """Raised on purpose: the HTTP server then breaks the connection within the answer."""


class EmulatorApp:
    """The routes of one emulated instance.

    Args:
        instance: runs the generations.
        model: the model's name.
        max_model_len: tokens that one sequence may have.
        max_num_queued_reqs: requests, running and waiting, beyond which new ones get a 503.
        api_key: where one is required.
        on_fault: told of a fault that is switched on or off over HTTP.
    """

    def __init__(
        self,
        instance: EmulatedInstance,
        *,
        model: str,
        max_model_len: int,
        max_num_queued_reqs: int | None = None,
        api_key: str | None = None,
        on_fault: Callable[[Fault | None], Awaitable[None]],
    ) -> None:
        self.instance = instance
        self.model = model
        self.max_model_len = max_model_len
        self._max_num_queued_reqs = max_num_queued_reqs
        self._api_key = api_key
        self._on_fault = on_fault
        self._started = int(time.time())
        self.asgi = Starlette(
            routes=[
                Route("/v1/chat/completions", _Route(self._chat), methods=["POST"]),
                Route("/v1/completions", _Route(self._completions), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ping", self._health, methods=["GET", "POST"]),
                Route("/load", self._load),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/emulator/fault", self._fault, methods=["GET", "POST"]),
            ],
            exception_handlers={HTTPException: _http_error, ProtocolError: _protocol_error},
        )

    # -- generations ---------------------------------------------------------------------------

    async def _chat(self, request: Request, send: Send) -> None:
        await self._generate(request, send, chat=True)

    async def _completions(self, request: Request, send: Send) -> None:
        await self._generate(request, send, chat=False)

    async def _generate(self, request: Request, send: Send, *, chat: bool) -> None:
        self._authorise(request)
        check_content_type(request.headers.get("content-type"))
        generation = parse_generation(
            await request.body(),
            chat=chat,
            model=self.model,
            max_model_len=self.max_model_len,
            policy=self.instance.engine.options.scheduling_policy,
        )
        self._shed_load(generation)
        if self.instance.strikes("error"):
            raise _TOLD_TO_FAIL
        self.instance.in_flight += 1
        # The answer is one task and the wait for a disconnect another; whoever is first ends both.
        work = asyncio.ensure_future(self._answer(generation, send))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.instance.in_flight -= 1
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, generation: Generation, send: Send) -> None:
        if self.instance.strikes("hang"):
            await asyncio.Event().wait()
        request_id = f"{'chatcmpl' if generation.chat else 'cmpl'}-{uuid.uuid4().hex}"
        if generation.stream:
            await self._answer_streaming(generation, request_id, send)
            return
        try:
            generated = await self._generate_choices(generation)
        except EngineDead as dead:
            raise _DEAD from dead
        body = bodies.whole(generation, request_id, self.model, generated)
        content = json.dumps(body).encode()
        await _begin(send, "application/json", len(content))
        if self.instance.strikes("die"):
            await send({"type": "http.response.body", "body": content[:20], "more_body": True})
            raise ConnectionBroken
        await send({"type": "http.response.body", "body": content})

    async def _generate_choices(self, generation: Generation) -> list[bodies.Generated]:
        """All choices at once. The engine's death fails them all."""
        choices = (self.instance.generate(generation) for _ in range(generation.choices))
        return list(await asyncio.gather(*choices))

    async def _answer_streaming(self, generation: Generation, request_id: str, send: Send) -> None:
        await _begin(send, "text/event-stream; charset=utf-8")
        dies = self.instance.strikes("die")
        about = (generation, request_id, self.model)
        try:
            if generation.chat:
                await _send_event(send, bodies.opening_event(*about))
            async for piece, answer, sequence, timing in self.instance.stream(generation):
                reason = None if timing is None else answer.finish_reason
                await _send_event(send, bodies.text_event(*about, piece, reason))
                if dies:
                    raise ConnectionBroken
                if timing is not None and generation.include_usage:
                    await _send_event(send, bodies.usage_event(*about, sequence, timing))
        except EngineDead:
            await _send_event(send, _DEAD.body())
        except ProtocolError as failure:
            await _send_event(send, failure.body())
        await _send_event(send, None)

    def _authorise(self, request: Request) -> None:
        if self._api_key is None:
            return
        if request.headers.get("authorization") != f"Bearer {self._api_key}":
            raise HTTPException(401, "Unauthorized")

    def _shed_load(self, generation: Generation) -> None:
        """As vLLM, which counts what runs and what waits."""
        limit = self._max_num_queued_reqs
        engine = self.instance.engine
        if limit is not None and engine.running + engine.waiting + generation.choices > limit:
            raise ProtocolError(
                "The engine is currently busy and cannot accept new requests. "
                "Please try again later or on a different instance.",
                status=503,
                kind="Service Unavailable",
            )

    # -- the rest ------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        self._authorise(request)
        return JSONResponse(
            bodies.model_list(self.model, max_model_len=self.max_model_len, created=self._started)
        )

    async def _health(self, request: Request) -> Response:
        fault = self.instance.fault
        return Response(status_code=503 if fault and fault.kind == "engine-death" else 200)

    async def _load(self, request: Request) -> Response:
        return JSONResponse({"server_load": self.instance.in_flight})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": bodies.VLLM_VERSION})

    async def _metrics(self, request: Request) -> Response:
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return Response(self.instance.metrics.text(), media_type=kind)

    async def _tokenize(self, request: Request) -> Response:
        check_content_type(request.headers.get("content-type"))
        count = parse_tokenize(await request.body(), model=self.model)
        return JSONResponse(
            {
                "count": count,
                "max_model_len": self.max_model_len,
                "tokens": list(range(count)),
                "token_strs": None,
            }
        )

    async def _fault(self, request: Request) -> Response:
        if request.method == "POST":
            body = read_object(await request.body())
            try:
                fault = Fault.parse(str(body.get("fault") or "none"))
                for_s = float(body["for_s"]) if body.get("for_s") is not None else None
            except (CallerMistake, TypeError, ValueError) as odd:
                raise ProtocolError(str(odd), param="fault") from odd
            if fault is not None and fault.kind == "refuse" and for_s is None:
                raise ProtocolError(
                    "With refuse, say for_s: nothing listens that could switch it off.",
                    param="for_s",
                )
            await self._on_fault(fault)
            if for_s is not None:
                asyncio.get_running_loop().call_later(
                    for_s, lambda: asyncio.ensure_future(self._on_fault(None))
                )
        present = self.instance.fault
        return JSONResponse({"fault": present.kind if present else None})


class _Route:
    """A route that writes its own answer and may break off; starlette calls it as an ASGI app."""

    def __init__(self, handler: Callable[[Request, Send], Awaitable[None]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(Request(scope, receive), send)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _begin(send: Send, kind: str, length: int | None = None) -> None:
    headers = [(b"content-type", kind.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send_event(send: Send, event: dict[str, Any] | None) -> None:
    """Send one event; None ends the stream."""
    data = "[DONE]" if event is None else json.dumps(event)
    await send(
        {
            "type": "http.response.body",
            "body": f"data: {data}\n\n".encode(),
            "more_body": event is not None,
        }
    )


def _protocol_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProtocolError)
    return JSONResponse(error.body(), status_code=error.status)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 401:
        return JSONResponse({"error": error.detail}, status_code=401)
    # The routes themselves are the web framework's, also there.
    return JSONResponse(
        {"detail": error.detail}, status_code=error.status_code, headers=error.headers
    )
