"""`HexgenWorker`: a Prefect worker that is already warm.

It runs flow runs inside its own process: a flow is imported once, and a run costs a task on an
event loop instead of a new Python process. Flow runs are isolated as far as one process can: an
error, a cancellation or a `sys.exit` ends its own run only. What ends the process (out of memory, a
crash in native code) ends all of them, and they are rescheduled; flows that do such things belong
in a `process` work pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import anyio
import anyio.abc
from prefect.exceptions import InfrastructureNotAvailable, ObjectNotFound
from prefect.flows import Flow
from prefect.settings import (
    PREFECT_WORKER_HEARTBEAT_SECONDS,
    PREFECT_WORKER_PREFETCH_SECONDS,
    PREFECT_WORKER_QUERY_SECONDS,
    temporary_settings,
)
from prefect.workers.base import BaseVariables, BaseWorker

from hexprefect.orchestration.worker_configuration import HexgenJobConfiguration, HexgenWorkerResult
from hexprefect.orchestration.worker_ending import RunEnder
from hexprefect.orchestration.worker_engine import RunControl
from hexprefect.orchestration.worker_events import follow_pool
from hexprefect.orchestration.worker_fleet import keep_fleet
from hexprefect.orchestration.worker_flows import FlowCache
from hexprefect.orchestration.worker_loop import FlowLoop
from hexprefect.orchestration.worker_recovery import Owner, Recovery
from hexprefect.orchestration.worker_services import Services
from hexprefect.orchestration.worker_settings import HexgenWorkerSettings
from hexprefect.orchestration.worker_supervision import Supervision
from hexprefect.orchestration.worker_task_runs import EndedFlowRuns

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

_SECOND_LOOK_S = 0.15
_DRAIN_INTERVAL_S = 0.05


class HexgenWorker(BaseWorker[HexgenJobConfiguration, BaseVariables, HexgenWorkerResult]):
    """Runs flow runs as tasks of one event loop (async flows) or in threads (sync flows).

    Start it with `prefect worker start --pool NAME` for a pool of the type `hexgen`. Its settings
    are those of `HexgenWorkerSettings`.
    """

    type = "hexgen"
    job_configuration = HexgenJobConfiguration
    job_configuration_variables = BaseVariables

    _display_name = "HEXGEN-FLOW"
    _description = (
        "Execute flow runs inside a warm worker process: for many short flow runs, such as "
        "Text-to-SQL queries, that must start within a fraction of a second."
    )
    _documentation_url = "https://docs.prefect.io/v3/concepts/workers"
    _logo_url = (
        "https://raw.githubusercontent.com/PrefectHQ/prefect/"
        "420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos/process.png"
    )

    def __init__(
        self,
        work_pool_name: str,
        work_queues: list[str] | None = None,
        name: str | None = None,
        prefetch_seconds: float | None = None,
        create_pool_if_not_found: bool = True,
        limit: int | None = None,
        heartbeat_interval_seconds: int | None = None,
        *,
        base_job_template: dict[str, Any] | None = None,
    ) -> None:
        self._options = HexgenWorkerSettings()
        # Prefect's commands always pass its general defaults, which are made for workers that
        # start processes: a value that differs from them was meant by somebody.
        if prefetch_seconds in (None, PREFECT_WORKER_PREFETCH_SECONDS.value()):
            prefetch_seconds = self._options.prefetch_seconds
        if heartbeat_interval_seconds in (None, int(PREFECT_WORKER_HEARTBEAT_SECONDS.value())):
            heartbeat_interval_seconds = self._options.heartbeat_seconds
        super().__init__(
            work_pool_name,
            work_queues=work_queues,
            name=name,
            prefetch_seconds=prefetch_seconds,
            create_pool_if_not_found=create_pool_if_not_found,
            limit=limit or self._options.limit,
            heartbeat_interval_seconds=heartbeat_interval_seconds,
            base_job_template=base_job_template,
        )
        self._owner: Owner | None = None
        self._active: dict[UUID, RunControl] = {}
        self._flows = FlowCache(self._logger)
        self._flow_loop: FlowLoop | None = None
        self._recovery = Recovery(
            pool=work_pool_name,
            logger=self._logger,
            dead_after_heartbeats=self._options.dead_after_heartbeats,
            unowned_seconds=self._options.unowned_seconds,
            max_recoveries=self._options.max_recoveries,
        )
        self._ender_or_none: RunEnder | None = None
        self._supervision_or_none: Supervision | None = None
        self._services = Services(self._logger)
        self._ended = EndedFlowRuns()
        self._doubtful = False
        """A run has left this process of which the server may not know the end."""
        self._polling = asyncio.Lock()
        self._wake = asyncio.Event()
        self._draining = False

    # --- life of the worker -------------------------------------------------------------------

    async def start(
        self,
        run_once: bool = False,
        with_healthcheck: bool = False,
        printer: Callable[..., None] = print,
    ) -> None:
        """Start the worker and run its loops; see `BaseWorker.start`."""
        with temporary_settings({PREFECT_WORKER_QUERY_SECONDS: self._options.poll_seconds}):
            await super().start(run_once, with_healthcheck, printer)

    async def setup(self) -> None:
        """Connect, start the loop for the flow runs and the services around it."""
        self._draining = False
        self._flow_loop = FlowLoop(
            logger=self._logger, blocked_seconds=self._options.blocked_seconds
        )
        await self._flow_loop.start()
        await super().setup()
        self._ender_or_none = RunEnder(
            self.client,
            interrupt=self._flow_loop.interrupt,
            cancel_seconds=self._options.cancel_seconds,
        )
        self._supervision_or_none = Supervision(
            self.client,
            active=self._active,
            ender=self._ender,
            services=self._services,
            logger=self._logger,
        )
        for service in (
            self._keep_beating(),
            self._follow_events(),
            self._poll_when_woken(),
            self._supervision.poll(every_s=self._options.cancel_poll_seconds),
            self._recover_orphans(),
            self._flow_loop.watch(),
            keep_fleet(self.client, self._logger),
        ):
            self._services.start(service)

    async def teardown(self, *exc_info: Any) -> None:
        """Let running flow runs finish for a while, reschedule the rest, and disconnect."""
        with anyio.CancelScope(shield=True):
            await self._drain()
            await self._services.stop()
        try:
            await super().teardown(*exc_info)
        finally:
            if self._flow_loop is not None:
                with anyio.CancelScope(shield=True):
                    await self._flow_loop.stop()

    async def sync_with_backend(self) -> None:
        """Heartbeat and read the pool; the first time, make sure of a name of our own."""
        if self._owner is None:
            await self._claim_name()
        await super().sync_with_backend()

    async def _claim_name(self) -> None:
        """Sign as this process, under a name that no living worker of the pool has.

        Two living workers of one name could not be told apart when one of them dies. A name whose
        last owner may still live gets this process's mark behind it.
        """
        owner = Owner.of_this_process(self.name)
        try:
            workers = await self.client.read_workers_for_work_pool(self._work_pool_name)
        except ObjectNotFound:
            workers = []  # the pool is created by the first heartbeat
        if any(worker.name == self.name and worker.status == "ONLINE" for worker in workers):
            self.name = f"{self.name}-{owner.life[:6]}"
            self._logger.warning(
                "A worker of this name seems to be alive; this one calls itself %r.", self.name
            )
        self._owner = Owner(owner.host, owner.pid, owner.life, self.name)

    async def _drain(self) -> None:
        self._draining = True
        deadline = time.monotonic() + self._options.shutdown_seconds
        while time.monotonic() < deadline:
            if not self._active and not self._submitting_flow_run_ids:
                break
            await asyncio.sleep(_DRAIN_INTERVAL_S)
        rest = list(self._active.values())
        if rest:
            self._logger.warning("Rescheduling %s flow runs for another worker.", len(rest))
        stops = [self._ender.stop(run, "reschedule", leave_stubborn=True) for run in rest]
        await asyncio.gather(*stops)
        await asyncio.sleep(0)  # lets `run` see that its flow runs have ended

    # --- taking flow runs ---------------------------------------------------------------------

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Poll once. Only one poll is on its way at a time, and none once the worker stops."""
        async with self._polling:
            if self._draining:
                return []
            return await super().get_and_submit_flow_runs()

    async def _propose_submitting_state(self, flow_run: FlowRun) -> None:
        """Nothing: between Pending and Running there is no infrastructure to wait for."""

    async def _give_worker_labels_to_flow_run(self, flow_run_id: UUID) -> None:
        """Label the run beside its start, which does not wait for it."""
        labels = super()._give_worker_labels_to_flow_run(flow_run_id)
        self._services.start(self._services.quietly(labels))

    async def run(
        self,
        flow_run: FlowRun,
        configuration: HexgenJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> HexgenWorkerResult:
        """Sign the flow run, run it here, and see to it that it ends in a final state.

        Raises:
            FlowNotLoadable: its code cannot be imported; the run is then marked Crashed.
            JobVariablesNotHonoured: it wants another process than this; likewise.
        """
        configuration.check()
        if self._owner is None or self._flow_loop is None:
            raise RuntimeError("The worker is not set up; use it as an async context manager.")
        control = RunControl(flow_run)
        control.abandoned = asyncio.get_running_loop().create_future()
        self._active[flow_run.id] = control
        try:
            # Signed before it runs: whoever finds an unsigned run may give it away.
            _, flow = await asyncio.gather(
                self.client.update_flow_run(flow_run.id, infrastructure_pid=self._owner.text),
                self._flows.load(self.client, flow_run, configuration.deployment),
            )
            if task_status is not None:
                task_status.started(self._owner.text)
            await self._execute(self._flow_loop, flow, control)
        finally:
            del self._active[flow_run.id]
            self._ended.add(flow_run.id)
            self._doubtful = self._doubtful or not control.has_been_told
            # A slot is free: the next one need not wait for the next poll.
            self._wake.set()
        return HexgenWorkerResult(identifier=self._owner.text, status_code=0)

    async def _execute(
        self, flow_loop: FlowLoop, flow: Flow[..., Any], control: RunControl
    ) -> None:
        if control.ending is None:
            control.done = flow_loop.run(flow, control)
            futures = {control.done, control.abandoned} - {None}
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
        if control.ending is not None:
            await self._ender.settle(control)
            return
        if control.done is None or not control.done.done():
            return
        if (error := control.done.exception()) is not None:
            message = f"The engine failed: {type(error).__name__}: {error}"
            self.get_flow_run_logger(control.flow_run).error(message, exc_info=error)
            await self._propose_crashed_state(control.flow_run, message)
            return
        state = control.done.result()
        if state is not None and state.is_cancelling():
            # Cancelled between being taken and being started, when no event found it here.
            control.ending = "cancel"
            await self._ender.settle(control)

    @property
    def _ender(self) -> RunEnder:
        if self._ender_or_none is None:
            raise RuntimeError("The worker is not set up; use it as an async context manager.")
        return self._ender_or_none

    # --- stopping flow runs -------------------------------------------------------------------

    async def kill_infrastructure(
        self,
        infrastructure_pid: str,
        configuration: HexgenJobConfiguration,
        grace_seconds: int = 30,
    ) -> None:
        """Stop the flow run of `configuration`, if it runs in this process.

        Raises:
            InfrastructureNotAvailable: it runs elsewhere.
        """
        related = configuration._related_objects.get("flow-run")
        control = self._active.get(related.id) if related is not None else None
        if control is None or self._owner is None or infrastructure_pid != self._owner.text:
            raise InfrastructureNotAvailable(f"The flow run is not here, but {infrastructure_pid}.")
        await self._ender.stop(control, "cancel")

    @property
    def _supervision(self) -> Supervision:
        if self._supervision_or_none is None:
            raise RuntimeError("The worker is not set up; use it as an async context manager.")
        return self._supervision_or_none

    # --- services -----------------------------------------------------------------------------

    async def _keep_beating(self) -> None:
        """Heartbeats beside Prefect's own, which end when a worker stops and has runs to finish."""
        while True:
            await asyncio.sleep(self.heartbeat_interval_seconds)
            if self._owner is not None:
                await self._services.quietly(
                    self.client.send_worker_heartbeat(
                        self._work_pool_name, self.name, self.heartbeat_interval_seconds
                    )
                )

    async def _follow_events(self) -> None:
        while self._work_pool is None:  # noqa: ASYNC110 - Prefect offers no event for it
            await asyncio.sleep(0.1)
        await follow_pool(
            self._work_pool.id,
            logger=self._logger,
            on_scheduled=self._wake.set,
            on_cancelling=self._supervision.cancel,
            on_suspended=self._supervision.suspend,
        )

    async def _poll_when_woken(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._services.quietly(self.get_and_submit_flow_runs())
            # The event of a state may arrive a moment before the state can be read.
            await asyncio.sleep(_SECOND_LOOK_S)
            if not self._wake.is_set():
                await self._services.quietly(self.get_and_submit_flow_runs())

    async def _recover_orphans(self) -> None:
        while True:
            if self._owner is not None and self._work_pool is not None:
                await self._services.quietly(self._recover_once(self._owner))
                await self._services.quietly(self._ended.look(self.client, running=self._active))
            await asyncio.sleep(self._options.recovery_seconds)

    async def _recover_once(self, me: Owner) -> None:
        def mine() -> set[UUID]:
            return {*self._active, *self._submitting_flow_run_ids}

        doubtful, self._doubtful = self._doubtful, False
        try:
            found = await self._recovery.search(self.client, me=me, mine=mine, doubtful=doubtful)
        except BaseException:
            self._doubtful = self._doubtful or doubtful
            raise
        if found:
            self._wake.set()
        await self._supervision.give_up_stolen(me)
