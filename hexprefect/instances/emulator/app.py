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
from hexprefect.instances.emulator.content import Answer
from hexprefect.instances.emulator.engine import Sequence
from hexprefect.instances.emulator.fault import Fault
from hexprefect.instances.emulator.instance import EmulatedInstance, EngineDead, Timing
from hexprefect.instances.emulator.protocol import (
    Generation,
    ProtocolError,
    check_model,
    count_tokens,
    parse_generation,
    read_object,
)

VLLM_VERSION = "0.32.0"
"""The version whose behaviour is emulated."""

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
        max_num_queued_reqs: waiting requests beyond which new ones get a 503; None: no limit.
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
        kind = request.headers.get("content-type", "application/json")
        if not kind.split(";")[0].strip().lower().endswith("json"):
            raise HTTPException(415, "Unsupported Media Type: Only 'application/json' is allowed")
        generation = parse_generation(
            await request.body(),
            chat=chat,
            model=self.model,
            max_model_len=self.max_model_len,
            policy=self.instance.engine.options.scheduling_policy,
        )
        self._shed_load()
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
            answer, timing, sequence = await self.instance.generate(generation)
        except EngineDead as dead:
            raise _DEAD from dead
        body = self._whole(generation, request_id, answer, sequence)
        body["metrics"] = _timing_fields(timing, sequence)
        content = json.dumps(body).encode()
        await _begin(send, "application/json", len(content))
        if self.instance.strikes("die"):
            await send({"type": "http.response.body", "body": content[:20], "more_body": True})
            raise ConnectionBroken
        await send({"type": "http.response.body", "body": content})

    async def _answer_streaming(self, generation: Generation, request_id: str, send: Send) -> None:
        await _begin(send, "text/event-stream; charset=utf-8")
        dies = self.instance.strikes("die")
        try:
            if generation.chat:
                await self._event(
                    generation, request_id, send, {"role": "assistant", "content": ""}
                )
            async for piece, answer, sequence, timing in self.instance.stream(generation):
                reason = None if timing is None else answer.finish_reason
                await self._event(generation, request_id, send, {"content": piece}, reason)
                if dies:
                    raise ConnectionBroken
                if timing is not None and generation.include_usage:
                    usage = _usage(generation, sequence)
                    await self._event(generation, request_id, send, None, usage=usage)
        except EngineDead:
            await _send_event(send, _DEAD.body())
        except ProtocolError as failure:
            await _send_event(send, failure.body())
        await _send_event(send, None)

    def _whole(
        self, generation: Generation, request_id: str, answer: Answer, sequence: Sequence
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "stop_reason": None}
        choice["finish_reason"] = answer.finish_reason
        if generation.chat:
            choice["message"] = {"role": "assistant", "content": answer.text, "tool_calls": []}
        else:
            choice["text"] = answer.text
        return {
            "id": request_id,
            "object": "chat.completion" if generation.chat else "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [choice],
            "usage": _usage(generation, sequence),
        }

    async def _event(
        self,
        generation: Generation,
        request_id: str,
        send: Send,
        delta: dict[str, Any] | None,
        finish_reason: str | None = None,
        *,
        usage: dict[str, Any] | None = None,
    ) -> None:
        choices: list[dict[str, Any]] = []
        if delta is not None:
            said = {"delta": delta} if generation.chat else {"text": delta.get("content", "")}
            choices = [{"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}]
        event: dict[str, Any] = {
            "id": request_id,
            "object": "chat.completion.chunk" if generation.chat else "text_completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            event["usage"] = usage
        await _send_event(send, event)

    def _authorise(self, request: Request) -> None:
        if self._api_key is None:
            return
        if request.headers.get("authorization") != f"Bearer {self._api_key}":
            raise HTTPException(401, "Unauthorized")

    def _shed_load(self) -> None:
        limit = self._max_num_queued_reqs
        if limit is not None and self.instance.engine.waiting >= limit:
            raise ProtocolError(
                f"The engine's queue is full ({limit} requests wait). Try another instance.",
                status=503,
                kind="ServiceUnavailableError",
            )

    # -- the rest ------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        self._authorise(request)
        card = {
            "id": self.model,
            "object": "model",
            "created": self._started,
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def _health(self, request: Request) -> Response:
        fault = self.instance.fault
        return Response(status_code=503 if fault and fault.kind == "engine-death" else 200)

    async def _load(self, request: Request) -> Response:
        return JSONResponse({"server_load": self.instance.in_flight})

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": VLLM_VERSION})

    async def _metrics(self, request: Request) -> Response:
        kind = "text/plain; version=1.0.0; charset=utf-8"
        return Response(self.instance.metrics.text(), media_type=kind)

    async def _tokenize(self, request: Request) -> Response:
        body = read_object(await request.body())
        check_model(body, self.model)
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise ProtocolError("1 validation error: Field required: ('body', 'prompt')")
        count = count_tokens(prompt)
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


def _usage(generation: Generation, sequence: Sequence) -> dict[str, Any]:
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": sequence.output_tokens,
        "total_tokens": generation.prompt_tokens + sequence.output_tokens,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def _timing_fields(timing: Timing, sequence: Sequence) -> dict[str, float]:
    gaps = max(1, sequence.output_tokens - 1)
    generating = timing.prefill_s + timing.decode_s
    return {
        "time_to_first_token_ms": 1000 * timing.first_token_s,
        "queue_time_ms": 1000 * timing.queue_s,
        "generation_time_ms": 1000 * timing.decode_s,
        "mean_itl_ms": 1000 * timing.decode_s / gaps,
        "tokens_per_second": sequence.output_tokens / generating if generating > 0 else 0.0,
    }


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
    kind = {404: "Not Found", 405: "Method Not Allowed"}.get(error.status_code, error.detail)
    refused = ProtocolError(error.detail, status=error.status_code, kind=kind)
    return JSONResponse(refused.body(), status_code=error.status_code, headers=error.headers)
