"""How a process takes part in the queue, and what it says when it cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import SecretStr

from hexprefect.errors import HexprefectError

ResolveSecret = Callable[[str], Awaitable[SecretStr]]
"""Gives the secret that an instance's `api_key_block` names."""


class NoInstanceInTime(HexprefectError):
    """No instance took the request before its patience ended."""


class QueueClosed(HexprefectError):
    """The process is leaving the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """How patient a process is, and how often it shows that it lives. All in seconds."""

    lease_s: float = 20.0
    """After so long without a heartbeat, others take this process for dead."""
    beat_every_s: float = 5.0
    store_patience_s: float = 30.0
    """How long anything is tried again while the store's own database is away, busy or full."""
    outage_patience_s: float = 30.0
    """How long a request waits while no instance serves at all."""
    overdue_patience_s: float = 300.0
    """How long a request may still wait once its query's deadline has passed: late is better than
    never, also for one that comes when it has passed long ago."""
    shortest_timeout_s: float = 60.0
    """A request on an instance is given at least this long, whatever its budget."""
    timeout_factor: float = 4.0
    """… and this many times the longest that it should take: profiles may be off by as much."""
    most_moves: int = 4
    """How often one request may leave an instance that failed it."""
    probe_every_s: float = 1.0
    """How often instances that are suspect or dead are asked whether they are back."""
    look_every_s: float = 5.0
    """How often an instance is asked what others have there, by all processes together."""
    poll_every_s: float = 0.003
    """How soon an SQLite store's change by another process is seen."""


async def environment_secret(name: str) -> SecretStr:
    """Resolve `env:NAME`; the fallback where no Prefect API is at hand.

    Raises:
        HexprefectError: when the name is of another kind, or not set.
    """
    import os

    kind, _, variable = name.partition(":")
    if kind != "env" or variable not in os.environ:
        raise HexprefectError(
            f"The API key {name!r} cannot be resolved here.",
            remedy="Name a Prefect Secret block, or env:VARIABLE with the variable set.",
        )
    return SecretStr(os.environ[variable])
