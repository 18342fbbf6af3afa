"""One connection pool an instance, so that a server that hangs starves nobody but itself.

A single pool has one limit for all servers: requests stuck on a hung one would use up its
connections, and requests to healthy servers would wait for them (the kind of
vllm-project/production-stack#749). It also keeps each pool's bookkeeping, which is linear in its
requests, short.
"""

from __future__ import annotations

from typing import Final

import httpx

FRESH_CONNECTION: Final = "hexprefect.fresh_connection"
"""Request extension: when true, no connection that has been used before carries the request."""


class PoolPerServer(httpx.AsyncBaseTransport):
    """Routes each request to the pool of its server; pools are made on first use.

    Args:
        max_connections: open connections to one server at most.
        max_idle_connections: idle connections kept for one server.
        idle_expiry_s: seconds after which an idle connection is closed by us. It is shorter than
            the 5 s after which uvicorn, under vLLM, closes its own, so that most races are not run.
    """

    def __init__(
        self,
        *,
        max_connections: int,
        max_idle_connections: int,
        idle_expiry_s: float,
    ) -> None:
        self._limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_idle_connections,
            keepalive_expiry=idle_expiry_s,
        )
        self._fresh_limits = httpx.Limits(
            max_connections=max_connections, max_keepalive_connections=0
        )
        self._pools: dict[tuple[str, str, int | None, bool], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send through the pool of the request's scheme, host and port."""
        fresh = bool(request.extensions.get(FRESH_CONNECTION, False))
        key = (request.url.scheme, request.url.host, request.url.port, fresh)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = httpx.AsyncHTTPTransport(
                limits=self._fresh_limits if fresh else self._limits, trust_env=False
            )
        return await pool.handle_async_request(request)

    async def aclose(self) -> None:
        """Close every connection."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.aclose()
