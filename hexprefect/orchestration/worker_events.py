"""Hear at once what happens to flow runs of a work pool, instead of asking for it every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter

from hexprefect.orchestration.worker_settings import AnyLogger

SCHEDULED = frozenset(
    f"prefect.flow-run.{name}" for name in ("Scheduled", "Late", "AwaitingRetry", "Resuming")
)
CANCELLING = "prefect.flow-run.Cancelling"
SUSPENDED = "prefect.flow-run.Suspended"
_RECONNECT_SECONDS = 5.0


async def follow_pool(
    work_pool_id: UUID,
    *,
    logger: AnyLogger,
    on_scheduled: Callable[[], None],
    on_cancelling: Callable[[UUID], None],
    on_suspended: Callable[[UUID], None],
) -> None:
    """Call back on events of the pool's flow runs, until cancelled.

    Events are a hint: they may come twice, late, or, while the connection is down, not at all.
    Whoever uses this also polls.
    """
    names = [*sorted(SCHEDULED), CANCELLING, SUSPENDED]
    pool = f"prefect.work-pool.{work_pool_id}"
    while True:
        subscriber = get_events_subscriber(
            filter=EventFilter(
                event=EventNameFilter(name=names), any_resource=EventAnyResourceFilter(id=[pool])
            )
        )
        try:
            async with subscriber:
                async for event in subscriber:
                    if event.event in SCHEDULED:
                        on_scheduled()
                        continue
                    flow_run_id = UUID(event.resource.id.removeprefix("prefect.flow-run."))
                    (on_cancelling if event.event == CANCELLING else on_suspended)(flow_run_id)
        except Exception as error:
            logger.debug("No events of the work pool for now (%s); polling goes on.", error)
        await asyncio.sleep(_RECONNECT_SECONDS)
