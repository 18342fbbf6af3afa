"""Two real, unequal instances on this machine's processors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from hexprefect.instances.local_model import ensure_model_async
from hexprefect.instances.local_server import LocalServer
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceSpec, tables
from hexprefect.store.alpha import set_alpha
from hexprefect.store.transaction import Transaction

DEFAULT_MODEL = "1.5B"
CONTEXT_TOKENS = 8192

LOCAL_ALPHA = 0.8

SCHEMA_TOKENS = 900
"""Of the schema in a prompt: a processor reads some twenty tokens a second, a GPU thousands."""


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


def local_profile_name(model: str, threads: int) -> str:
    """The measured profile that comes closest: history corrects it after a few requests."""
    size = "" if model == DEFAULT_MODEL else f"{model.lower()}-"
    return f"local-{size}1-thread" if threads == 1 else f"local-{size}2-threads"


def prefer_the_fast(tx: Transaction) -> None:
    """Start a new store's α history towards speed.

    The slow local instance reads a prompt for minutes that the fast one holds in its cache: waiting
    a few seconds for it is nearly always better. Tuning goes on from there.
    """
    if tx.connection.execute(select(tables.alpha_history.c.id).limit(1)).first() is None:
        set_alpha(tx, LOCAL_ALPHA, reason="local instances: their speeds differ more than queues")


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
                profile=default_profile(local_profile_name(model, instance.threads)),
                slots=1,
                context_tokens=CONTEXT_TOKENS,
            )
            for instance, endpoint in zip(instances, endpoints, strict=True)
        )
