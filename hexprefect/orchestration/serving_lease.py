"""A flow run's right to serve under an instance's name, kept alive in the store.

It is a row among the store's processes, as any process that holds leases has one. A flow run that
is gone stops beating; after the lease another may take the name, and whoever keeps the fleet in
step sees that nobody serves there any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from types import TracebackType
from typing import NoReturn, Self

from sqlalchemy import Connection, delete, select, update

from hexprefect.errors import HexprefectError
from hexprefect.store import Store, tables
from hexprefect.store.processes import enter_process
from hexprefect.store.transaction import Transaction

logger = logging.getLogger(__name__)

_RETRY_EVERY_S = 1.0


class ServedElsewhere(HexprefectError):
    """Another flow run serves an instance of this name."""


class ServingLease:
    """The lease on one instance's name, as an async context manager.

    Entering waits for the lease of a flow run that is gone to run out, and then some.

    Args:
        store: opened with `process_of(name)` as its process.
        name: of the instance.
        lease_s: seconds without a beat after which it may be taken over.

    Raises:
        ServedElsewhere: on entering, when a living flow run has it.
    """

    def __init__(self, store: Store, name: str, *, lease_s: float) -> None:
        self._store = store
        self._name = name
        self._lease_s = lease_s
        self._taken_at: float | None = None
        """Tells our row from that of somebody who took the name over."""

    @staticmethod
    def process_of(name: str) -> str:
        """The id, among the store's processes, of whoever serves the instance `name`."""
        return f"serves-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"

    async def __aenter__(self) -> Self:
        deadline = time.monotonic() + 1.5 * self._lease_s
        while True:
            self._taken_at, holder = await self._store.run(
                lambda tx: _take(tx, lease_s=self._lease_s)
            )
            if self._taken_at is not None:
                return self
            if time.monotonic() > deadline:
                raise ServedElsewhere(
                    f"Instance {self._name!r} is served by another flow run, on {holder}.",
                    remedy="Cancel that flow run first, or serve another replica.",
                )
            await asyncio.sleep(_RETRY_EVERY_S)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        taken_at = self._taken_at
        # Handed in, not awaited: whoever leaves is often being cancelled.
        with contextlib.suppress(RuntimeError):
            self._store.enqueue(lambda tx: _give_up(tx, taken_at))

    async def keep(self) -> NoReturn:
        """Beat for ever. A store that is away for a while is tried again: the instance serves on.

        Raises:
            ServedElsewhere: somebody else has taken the name over, because we did not beat in time.
        """
        while True:
            await asyncio.sleep(self._lease_s / 4)
            taken_at = self._taken_at
            try:
                self._taken_at = await self._store.run(
                    lambda tx, mine=taken_at: _beat(tx, mine, lease_s=self._lease_s)  # type: ignore[misc]
                )
            except Exception:
                logger.warning(
                    "The lease on %s could not be kept; trying again.", self._name, exc_info=True
                )
                continue
            if self._taken_at is None:
                raise ServedElsewhere(
                    f"Instance {self._name!r} was taken over by another flow run, because this one "
                    f"had not reached the store for {self._lease_s:.0f} s.",
                    remedy="See that the store can be reached, and raise the lease if it is slow.",
                )


def is_served(connection: Connection, name: str, *, now: float) -> bool:
    """Whether a living flow run serves the instance `name`."""
    process = tables.processes.c
    found = connection.execute(
        select(process.id).where(
            process.id == ServingLease.process_of(name), process.expires_at >= now
        )
    )
    return found.first() is not None


def _take(tx: Transaction, *, lease_s: float) -> tuple[float | None, str]:
    process = tables.processes.c
    held = tx.connection.execute(select(tables.processes).where(process.id == tx.process)).first()
    if held is not None and held.expires_at >= tx.now:
        return None, f"{held.host} (process {held.pid})"
    tx.connection.execute(delete(tables.processes).where(process.id == tx.process))
    enter_process(tx, lease_s=lease_s)
    return tx.now, ""


def _beat(tx: Transaction, taken_at: float | None, *, lease_s: float) -> float | None:
    """Prolong our lease, or take it anew where it has run out; None where somebody else has it."""
    process = tables.processes.c
    changed = tx.connection.execute(
        update(tables.processes)
        .where(process.id == tx.process, process.joined_at == taken_at)
        .values(expires_at=tx.now + lease_s)
    )
    if changed.rowcount:
        return taken_at
    return _take(tx, lease_s=lease_s)[0]


def _give_up(tx: Transaction, taken_at: float | None) -> None:
    process = tables.processes.c
    tx.connection.execute(
        delete(tables.processes).where(process.id == tx.process, process.joined_at == taken_at)
    )
