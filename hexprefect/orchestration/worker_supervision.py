"""What the server wants of the flow runs that are in a worker: cancelled, suspended, given away.

It is heard by events at once, and asked for now and then, because events may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType

from hexprefect.orchestration.worker_ending import RunEnder
from hexprefect.orchestration.worker_engine import RunControl, mark_suspended
from hexprefect.orchestration.worker_recovery import Owner
from hexprefect.orchestration.worker_services import Services
from hexprefect.orchestration.worker_settings import AnyLogger

_WANTED = [StateType.CANCELLING, StateType.PAUSED]


class Supervision:
    """Does to the flow runs of a worker what the server says of them.

    Args:
        client: of the Prefect API.
        active: the flow runs that are here now.
        ender: stops them.
        services: on which the stopping runs.
        logger: for what concerns no single flow run.
    """

    def __init__(
        self,
        client: PrefectClient,
        *,
        active: Mapping[UUID, RunControl],
        ender: RunEnder,
        services: Services,
        logger: AnyLogger,
    ) -> None:
        self._client = client
        self._active = active
        self._ender = ender
        self._services = services
        self._logger = logger

    def cancel(self, flow_run_id: UUID) -> None:
        """Stop a flow run, if it is here and nobody stops it yet."""
        control = self._active.get(flow_run_id)
        if control is not None and control.ending is None:
            self._services.start(self._ender.stop(control, "cancel"))

    def suspend(self, flow_run_id: UUID) -> None:
        """Suspend a flow run, if it is here and the server says so."""
        if flow_run_id in self._active:
            self._services.start(self._services.quietly(self._look_at(flow_run_id)))

    async def poll(self, *, every_s: float) -> None:
        """Ask for cancelled and suspended flow runs, for ever."""
        while True:
            await asyncio.sleep(every_s)
            if self._active:
                await self._services.quietly(self._look())

    async def give_up_stolen(self, me: Owner) -> None:
        """Stop runs that others have taken because this worker looked dead: theirs is the truth."""
        if not self._active:
            return
        for flow_run in await self._read(FlowRunFilter(id=self._ids())):
            control = self._active.get(flow_run.id)
            if (
                control is not None
                and control.done is not None
                and control.ending is None
                and flow_run.infrastructure_pid not in (None, me.text)
            ):
                self._logger.warning("Flow run %r was given to another worker.", flow_run.name)
                self._services.start(self._ender.stop(control, "release"))

    async def _look(self) -> None:
        state = FlowRunFilterState(type=FlowRunFilterStateType(any_=_WANTED))
        for flow_run in await self._read(FlowRunFilter(id=self._ids(), state=state)):
            self._apply(flow_run)

    async def _look_at(self, flow_run_id: UUID) -> None:
        # Events may be old; what counts is what the server says now.
        self._apply(await self._client.read_flow_run(flow_run_id))

    def _apply(self, flow_run: FlowRun) -> None:
        state = flow_run.state
        if state is None or flow_run.id not in self._active:
            return
        if state.is_cancelling():
            self.cancel(flow_run.id)
        elif state.is_paused() and state.name == "Suspended":
            mark_suspended(flow_run.id, state)

    def _ids(self) -> FlowRunFilterId:
        return FlowRunFilterId(any_=list(self._active))

    async def _read(self, wanted: FlowRunFilter) -> list[FlowRun]:
        return await self._client.read_flow_runs(flow_run_filter=wanted)
