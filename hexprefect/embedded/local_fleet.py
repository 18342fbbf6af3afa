"""Two real, unequal instances on this machine's processors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hexprefect.instances.local_model import ensure_model_async
from hexprefect.instances.local_server import LocalServer
from hexprefect.instances.profiles import default_profile
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec

DEFAULT_MODEL = "1.5B"
CONTEXT_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class LocalInstance:
    """What one server of the local fleet is."""

    name: str
    pool: str
    threads: int


def local_instances(processors: int | None = None) -> tuple[LocalInstance, ...]:
    """A fast and a slow instance, with at most one thread more than there are processors."""
    available = processors or len(os.sched_getaffinity(0))
    slow = max(1, available // 3)
    fast = max(slow + 1, available - slow)
    return (
        LocalInstance("local-fast", "local-fast", fast),
        LocalInstance("local-slow", "local-slow", slow),
    )


def local_profile(threads: int) -> Profile:
    """What to expect of a local server until it has a history: measured for one and two threads.

    Further threads shorten prefill in proportion; decoding is bound by memory and gains less. The
    context of a slot limits a request here, not a shared KV memory.
    """
    measured = default_profile("local-1-thread" if threads == 1 else "local-2-threads")
    further = threads / min(threads, 2)
    return replace(
        measured,
        name=f"local-{threads}-threads",
        input_s_per_token=measured.input_s_per_token / further,
        output_s_per_token=measured.output_s_per_token / further**0.5,
        kv_tokens=None,
    )


@asynccontextmanager
async def local_fleet(
    *, model: str = DEFAULT_MODEL, model_path: Path | None = None
) -> AsyncIterator[tuple[InstanceSpec, ...]]:
    """Run the local instances; fetches the model first where it is not in the cache.

    Raises:
        ModelUnavailable: when the model cannot be had.
        InstanceStartFailed: when a server does not come up.
    """
    path = await ensure_model_async(model, model_path)
    async with AsyncExitStack() as stack:
        instances = local_instances()
        servers = [
            LocalServer(
                instance.name,
                path,
                threads=instance.threads,
                context_tokens=CONTEXT_TOKENS,
            )
            for instance in instances
        ]
        endpoints = await asyncio.gather(*(stack.enter_async_context(server) for server in servers))
        yield tuple(
            InstanceSpec(
                name=instance.name,
                pool=instance.pool,
                url=endpoint.url,
                model=endpoint.model,
                speaks=endpoint.speaks,
                profile=local_profile(instance.threads),
                slots=1,
                context_tokens=CONTEXT_TOKENS,
            )
            for instance, endpoint in zip(instances, endpoints, strict=True)
        )
