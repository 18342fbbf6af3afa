"""Connections to many servers, thousands at once, none of which can starve another.

Two things that a general pool does not give. First, a limit for each server: with one limit for
all, requests stuck on a hung server use up the connections, and requests to healthy servers wait
for them (the kind of vllm-project/production-stack#749). Second, constant work for each request:
httpcore's pool looks through all its requests and connections whenever one begins or ends, which
took 10 s of CPU for 400 requests in flight. Here each connection is a pool of one, and the idle
ones lie on a stack.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import httpx

FRESH_CONNECTION: Final = "hexprefect.fresh_connection"
"""Request extension: when true, no connection that has been used before carries the request."""

_OPENING_AT_ONCE = 64

_Connection = httpx.AsyncHTTPTransport
_Trace = Callable[[str, dict[str, Any]], Awaitable[None]]
_ServerKey = tuple[str, str, int | None]


class PoolPerServer(httpx.AsyncBaseTransport):
    """Routes each request to the connections of its server.

    Args:
        max_connections: open connections to one server at most; requests beyond wait for one,
            for as long as their `pool` timeout says.
        max_idle_connections: idle connections kept for one server.
        idle_expiry_s: seconds after which an idle connection is closed by us. It is best shorter
            than the 5 s after which uvicorn, under vLLM, closes its own: whoever closes first
            cannot be surprised.
    """

    def __init__(
        self, *, max_connections: int, max_idle_connections: int, idle_expiry_s: float
    ) -> None:
        self._max_connections = max_connections
        self._max_idle = max_idle_connections
        self._idle_expiry_s = idle_expiry_s
        self._servers: dict[_ServerKey, _Server] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send over an idle connection of the request's server, or over a new one."""
        key = (request.url.scheme, request.url.host, request.url.port)
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = _Server(
                free=asyncio.Semaphore(self._max_connections),
                opening=asyncio.Semaphore(_OPENING_AT_ONCE),
            )
        await _acquire(server.free, request)
        fresh = bool(request.extensions.get(FRESH_CONNECTION))
        try:
            # The last one used: the others may then age and be closed.
            connection = (
                server.idle.pop()[1]
                if server.idle and not fresh
                else await self._new_connection(server, request)
            )
        except BaseException:
            server.free.release()
            raise
        server.busy.add(connection)
        try:
            answer = await connection.handle_async_request(request)
        except BaseException:
            await self._discard(server, connection)
            raise
        finally:
            trace = request.extensions.get("trace")
            if isinstance(trace, _EndOfOpening):
                trace.end()
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        return httpx.Response(
            status_code=answer.status_code,
            headers=answer.headers,
            stream=_ReturningStream(answer.stream, self, server, connection),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        servers, self._servers = list(self._servers.values()), {}
        for server in servers:
            for connection in [*server.busy, *(idle for _, idle in server.idle)]:
                await connection.aclose()
            server.busy.clear()
            server.idle.clear()

    async def give_back(self, server: _Server, connection: _Connection) -> None:
        """Keep `connection` for the next request, and close those that have idled too long."""
        if connection not in server.busy:
            return
        server.busy.discard(connection)
        server.free.release()
        now = time.monotonic()
        server.idle.append((now, connection))
        while server.idle and (
            len(server.idle) > self._max_idle or server.idle[0][0] < now - self._idle_expiry_s
        ):
            _, oldest = server.idle.popleft()
            await oldest.aclose()

    async def _discard(self, server: _Server, connection: _Connection) -> None:
        server.busy.discard(connection)
        server.free.release()
        await connection.aclose()

    async def _new_connection(self, server: _Server, request: httpx.Request) -> _Connection:
        """A connection that opens when it is used, which happens when its turn has come."""
        await _acquire(server.opening, request)
        request.extensions["trace"] = _EndOfOpening(server.opening, request.extensions.get("trace"))
        return _Connection(
            verify=self._ssl_context,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=1,
                max_keepalive_connections=1,
                keepalive_expiry=self._idle_expiry_s,
            ),
        )

    @cached_property
    def _ssl_context(self) -> ssl.SSLContext:
        return httpx.create_ssl_context(trust_env=False)


@dataclass(slots=True)
class _Server:
    """The connections to one server."""

    free: asyncio.Semaphore
    opening: asyncio.Semaphore
    """Held while a connection is opened. A thousand at once would overflow the server's backlog,
    and their time to connect would measure how busy this process is."""
    idle: deque[tuple[float, _Connection]] = field(default_factory=deque)
    """With the time since which they idle, oldest first."""
    busy: set[_Connection] = field(default_factory=set)


class _EndOfOpening:
    """A trace hook that frees the turn to open a connection once it is open or has failed."""

    def __init__(self, opening: asyncio.Semaphore, then: _Trace | None) -> None:
        self._opening: asyncio.Semaphore | None = opening
        self._then = then

    async def __call__(self, event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.connect_tcp.failed"):
            self.end()
        if self._then is not None:
            await self._then(event, info)

    def end(self) -> None:
        if self._opening is not None:
            self._opening.release()
            self._opening = None


class _ReturningStream(httpx.AsyncByteStream):
    """An answer's body that gives its connection back when it is closed."""

    def __init__(
        self,
        stream: httpx.AsyncByteStream,
        pool: PoolPerServer,
        server: _Server,
        connection: _Connection,
    ) -> None:
        self._stream, self._pool, self._server = stream, pool, server
        self._connection = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._pool.give_back(self._server, self._connection)


async def _acquire(free: asyncio.Semaphore, request: httpx.Request) -> None:
    timeout_s = request.extensions.get("timeout", {}).get("pool")
    try:
        async with asyncio.timeout(timeout_s):
            await free.acquire()
    except TimeoutError as late:
        raise httpx.PoolTimeout("no connection became free", request=request) from late
