"""A server of which each test writes the behaviour, down to when the connection breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from hexprefect.completion import Message, Prompt
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint


@dataclass
class ReceivedRequest:
    """One request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    connection: int
    """Which connection it came on, counted from 0."""


@dataclass
class Exchange:
    """What a behaviour has in its hands: the request, and the raw connection."""

    request: ReceivedRequest
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(
        self, body: Any, status: int = 200, kind: str = "application/json", close: bool = False
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n"
            f"connection: {'close' if close else 'keep-alive'}\r\n\r\n"
        )
        self.writer.write(head.encode() + content)
        await self.writer.drain()

    async def begin_stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def event(self, event: Any) -> None:
        await self.send(f"data: {json.dumps(event)}\n\n".encode())

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def until_the_client_leaves(self) -> None:
        await self.reader.read()


Behaviour = Callable[[Exchange], Awaitable[None]]


@dataclass
class ScriptedServer:
    """An HTTP server on a free port of 127.0.0.1 that does what `behaviour` says."""

    behaviour: Behaviour
    requests: list[ReceivedRequest] = field(default_factory=list)
    url: str = ""
    _connections: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def endpoint(self, **changes: Any) -> Endpoint:
        return Endpoint(**{"name": "scripted", "url": self.url, "model": "tiny", **changes})

    def close_idle_connections(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self._connections = self._connections, self._connections + 1
        self._open.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                method, path, _ = first.split(" ")
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                body = json.loads(content) if content else None
                received = ReceivedRequest(method, path, headers, body, connection)
                self.requests.append(received)
                await self.behaviour(Exchange(received, reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


@asynccontextmanager
async def scripted_server(behaviour: Behaviour) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(behaviour)
    server = await asyncio.start_server(scripted._serve, "127.0.0.1", 0, backlog=4096)
    scripted.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        server.close()
        scripted.close_idle_connections()


@pytest.fixture
def serve() -> Callable[[Behaviour], Any]:
    """`async with serve(behaviour) as server`."""
    return scripted_server


@pytest.fixture
async def client() -> AsyncIterator[InstanceClient]:
    async with InstanceClient() as client:
        yield client


@pytest.fixture
def prompt() -> Prompt:
    return Prompt(
        stage="candidate_generation",
        messages=(Message("system", "You write SQL."), Message("user", "How many singers?")),
        max_output_tokens=32,
    )


@pytest.fixture
def chat_answer() -> dict[str, Any]:
    """A vLLM answer in full."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "SELECT 6"},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 40,
            "completion_tokens": 3,
            "total_tokens": 43,
            "prompt_tokens_details": {"cached_tokens": 32},
        },
    }
