"""The work of `serve-instance`: one launched vLLM, from its start to the end of its last process.

The flow run holds a lease on the instance's name in the store, so that no two of them serve under
one name. The instance enters the store when it answers, is dead there the moment its engine or its
process dies, and drains when the flow run is cancelled: its queue moves, what runs is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from prefect.client.orchestration import PrefectClient

from hexprefect.errors import HexprefectError
from hexprefect.instances.client import InstanceClient
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceError, InstanceStartFailed
from hexprefect.instances.launched import (
    ServerEnded,
    StartProgress,
    VllmOptions,
    VllmServer,
    read_capacity,
)
from hexprefect.orchestration.fleet_sync import spec_of_pool_instance
from hexprefect.orchestration.pools import PoolInstance, PoolMistake, read_pool_instances
from hexprefect.orchestration.serving_lease import ServingLease
from hexprefect.store import InstanceSpec, Store, StoreUnavailable, UnknownInstance
from hexprefect.store.fleet import enter_instance, set_instance_state
from hexprefect.store.transaction import Transaction
from hexprefect.store.values import InstanceState
from hexprefect.store.views import instance_views

Logger = logging.Logger | logging.LoggerAdapter[Any]
T = TypeVar("T")

PROBE_EVERY_S = 0.5
PROBES_TO_DEATH = 3
"""Times in a row that nothing answers, while the process is there."""
REPORT_EVERY_S = 10.0
SETTLED_AFTER_S = 600.0
"""Seconds of good service after which earlier deaths are forgiven."""
RESTART_PAUSE_S = 2.0
VLLM_EXIT_S = 10.0
"""How long a vLLM whose engine has died may take to end by itself."""

STOPPED = "its serve-instance flow run has ended"

ServingState = Literal["starting", "serving", "draining", "dead", "stopped"]


class NothingToLaunch(HexprefectError):
    """The work pool does not say how to launch this replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """How one flow run serves.

    Args:
        start_timeout_s: seconds until a started vLLM must answer; loading weights takes minutes.
        drain_s: seconds that running requests get to end when the flow run is cancelled.
        restarts: how often a vLLM that had served and died is started again.
        devices: for `CUDA_VISIBLE_DEVICES`; None leaves it as it is.
        lease_s: seconds without a sign of life after which another flow run may take the name.
    """

    start_timeout_s: float = 1800.0
    drain_s: float = 120.0
    restarts: int = 3
    devices: str | None = None
    lease_s: float = 20.0


@dataclass(frozen=True, slots=True)
class ServingReport:
    """What a person wants to know of a flow run that serves."""

    name: str
    url: str
    model: str
    state: ServingState
    detail: str = ""
    fraction: float = 0.0
    """Of the start, 0 to 1."""
    running: int = 0
    waiting: int = 0
    deaths: int = 0


Tell = Callable[[ServingReport], None]


async def launched_instance(client: PrefectClient, pool: str, *, replica: int) -> PoolInstance:
    """What a work pool says of its nth launched instance.

    Raises:
        PoolMistake: the pool's variables are not usable.
        NothingToLaunch: it launches fewer.
    """
    mistakes: list[PoolMistake] = []
    found = await read_pool_instances(client, on_mistake=mistakes.append)
    for mistake in mistakes:
        if mistake.pool == pool:
            raise mistake
    launched = [one for one in found if one.pool == pool and one.launch is not None]
    if not 1 <= replica <= len(launched):
        raise NothingToLaunch(
            f"The work pool {pool!r} launches {len(launched)} instances; there is no replica "
            f"{replica}.",
            remedy="Raise the pool's variable `launch.replicas`.",
        )
    wanted = launched[replica - 1]
    spec_of_pool_instance(wanted)  # what the store would refuse is found before a model is loaded
    return wanted


def vllm_options(instance: PoolInstance, options: ServingOptions) -> VllmOptions:
    """The server's options from what the pool says of it.

    Raises:
        CallerMistake: the pool's extra arguments say what has a place of its own.
    """
    launch = instance.launch
    assert launch is not None
    devices = {} if options.devices is None else {"CUDA_VISIBLE_DEVICES": options.devices}
    return VllmOptions(
        model=launch.model,
        served_model_name=instance.model,
        host=launch.host,
        port=launch.port,
        tensor_parallel_size=launch.tensor_parallel_size,
        quantization=launch.quantization,
        max_num_seqs=launch.max_num_seqs,
        max_model_len=launch.max_model_len,
        shutdown_timeout_s=max(1, round(options.drain_s)),
        extra_arguments=launch.extra_arguments,
        executable=launch.executable,
        environment={**launch.environment, **devices},
        api_key=instance.api_key,
    )


class Serving:
    """Launches one instance and keeps it in the fleet until it is cancelled or dies for good.

    Args:
        instance: as the pool describes it.
        store: opened with `ServingLease.process_of(instance.name)` as its process.
        options: how long to be patient.
        log_folder: where the server's log is written.
        logger: of the flow run.
        tell: is told of every change, on the loop.
    """

    def __init__(
        self,
        instance: PoolInstance,
        store: Store,
        *,
        options: ServingOptions,
        log_folder: Path,
        logger: Logger,
        tell: Tell,
    ) -> None:
        self._instance = instance
        self._store = store
        self._options = options
        self._logger = logger
        self._tell_report = tell
        self._vllm = vllm_options(instance, options)
        self._log = log_folder / f"{instance.name}.log"
        self._lease = ServingLease(store, instance.name, lease_s=options.lease_s)
        self._report = ServingReport(instance.name, self._vllm.url, instance.model, "starting")
        self._known = False
        """Whether the store has the instance from this flow run."""

    async def run(self) -> str:
        """Serve; returns why it stopped, where an operator took the instance away.

        Raises:
            InstanceStartFailed: vLLM did not come up.
            ServerEnded: it died more often than it may be started again.
            ServedElsewhere: another flow run serves under this name.
        """
        async with self._lease:
            try:
                return await self._serve_and_restart()
            finally:
                if self._known and self._report.state != "dead":
                    await uninterrupted(self._set_state("dead", STOPPED))
                self._tell(state="stopped")

    async def _serve_and_restart(self) -> str:
        deaths = 0
        while True:
            since = time.monotonic()
            try:
                return await self._serve_once()
            except (ServerEnded, InstanceStartFailed) as ended:
                if isinstance(ended, InstanceStartFailed) and deaths == 0:
                    raise  # it never served: starting it again would fail again
                settled = time.monotonic() - since > SETTLED_AFTER_S
                deaths = 1 if settled and isinstance(ended, ServerEnded) else deaths + 1
                self._tell(state="dead", detail=ended.problem, deaths=self._report.deaths + 1)
                if deaths > self._options.restarts:
                    raise
                self._logger.error(
                    "%s Starting it again (%d of %d).", ended, deaths, self._options.restarts
                )
            await asyncio.sleep(RESTART_PAUSE_S * deaths)

    async def _serve_once(self) -> str:
        server = VllmServer(
            self._instance.name,
            self._vllm,
            log=self._log,
            start_timeout_s=self._options.start_timeout_s,
            on_progress=self._say_progress,
        )
        # No value of the environment, and no key: a command line tells everybody.
        self._logger.info("Starting %s", " ".join(self._vllm.command()))
        async with server:
            await self._enter(server.endpoint)
            self._logger.info("%s serves at %s.", self._instance.name, server.endpoint.url)
            try:
                why = await self._watch(server)
            except asyncio.CancelledError:
                await uninterrupted(self._drain(server, why="its flow run was cancelled"))
                raise
            await uninterrupted(self._drain(server, why=why))
            return why

    def _say_progress(self, progress: StartProgress) -> None:
        self._logger.info("Starting for %.0f s: %s", progress.elapsed_s, progress.doing)
        self._tell(state="starting", detail=progress.doing, fraction=progress.fraction)

    # -- serving --------------------------------------------------------------------------------

    async def _enter(self, endpoint: Endpoint) -> None:
        """Make it an instance of the fleet, with the memory that the server itself tells of."""
        told = await read_capacity(endpoint)
        spec = spec_of_pool_instance(self._instance)
        spec = replace(
            spec,
            url=endpoint.url,
            context_tokens=told.context_tokens or spec.context_tokens,
            profile=replace(spec.profile, kv_tokens=told.kv_tokens or spec.profile.kv_tokens),
        )
        # Before it is: what is handed in happens, also when this is cancelled meanwhile.
        again, self._known = self._known, True
        await self._store.run(lambda tx: _enter(tx, spec, again=again))
        self._tell(state="serving", detail="", fraction=1.0)

    async def _watch(self, server: VllmServer) -> str:
        """Watch over it while it serves; returns why it should not serve any longer.

        Raises:
            ServerEnded: it died. The store knows.
        """
        ended = asyncio.ensure_future(server.ended())
        unwell = asyncio.ensure_future(self._until_unwell(server.endpoint))
        lease = asyncio.ensure_future(self._lease.keep())
        removed = asyncio.ensure_future(self._until_removed(server.endpoint))
        watching = (ended, unwell, lease, removed)
        try:
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or unwell.done():
                reason = "vLLM has ended" if ended.done() else unwell.result()
                await self._set_state("dead", reason, unless="draining")
                # An engine's death ends its server a moment later; the log then says why.
                await asyncio.wait([ended], timeout=VLLM_EXIT_S)
                if not ended.done():
                    await server.kill()
                raise await ended
            if lease.done():
                # The name is another's now, and so is what the store says of it.
                self._known = False
                lease.result()
            return removed.result()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _until_unwell(self, endpoint: Endpoint) -> str:
        """Return when the server says that its engine is dead, or nothing listens any more.

        One that is only slow to answer is not dead: traffic decides that, as for any instance.
        """
        unreachable = 0
        async with InstanceClient() as client:
            while True:
                report = await client.health(endpoint)
                if report.kind == "unavailable":
                    return report.detail
                unreachable = unreachable + 1 if report.kind in ("refused", "died") else 0
                if unreachable >= PROBES_TO_DEATH:
                    return report.detail
                await asyncio.sleep(PROBE_EVERY_S)

    async def _until_removed(self, endpoint: Endpoint) -> str:
        """Report its load now and then; return when an operator has removed it from the store."""
        async with InstanceClient() as client:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    views = await self._store.read_async(instance_views)
                    if self._instance.name not in views:
                        return "it was removed from the store"
                with contextlib.suppress(InstanceError):
                    load = await client.load(endpoint)
                    self._tell(running=load.running or 0, waiting=load.waiting or 0)
                await asyncio.sleep(REPORT_EVERY_S)

    # -- its end --------------------------------------------------------------------------------

    async def _drain(self, server: VllmServer, *, why: str) -> None:
        """Let what runs end, for so long as it may, and then end the server."""
        self._logger.info("%s drains: %s.", self._instance.name, why)
        self._tell(state="draining", detail=why)
        try:
            async with asyncio.timeout(self._options.drain_s):
                await self._set_state("draining", why)
                await self._until_idle(server.endpoint)
        except TimeoutError:
            self._logger.warning(
                "%s still runs requests after %.0f s; they move to other instances.",
                self._instance.name,
                self._options.drain_s,
            )
            await server.kill()
        else:
            # It is idle: nothing keeps it from ending at once.
            await server.stop(grace_s=VLLM_EXIT_S)

    async def _until_idle(self, endpoint: Endpoint) -> None:
        """Return when neither we nor others run anything on it, or it no longer answers."""
        async with InstanceClient() as client:
            while True:
                try:
                    load = await client.load(endpoint)
                except InstanceError:
                    return
                theirs = (load.running or 0) + (load.waiting or 0)
                if theirs == 0 and not await self._is_occupied():
                    return
                self._tell(running=load.running or 0, waiting=load.waiting or 0)
                await asyncio.sleep(PROBE_EVERY_S)

    async def _is_occupied(self) -> bool:
        """Whether the store knows of requests there; a store that is away holds nothing up."""
        with contextlib.suppress(StoreUnavailable):
            view = (await self._store.read_async(instance_views)).get(self._instance.name)
            return view is not None and view.occupied > 0
        return False

    async def _set_state(
        self, state: InstanceState, reason: str, *, unless: InstanceState | None = None
    ) -> None:
        name = self._instance.name

        def move(tx: Transaction) -> None:
            load = tx.instances.get(name)
            if load is None or load.state != unless:
                set_instance_state(tx, name, state, reason=reason)

        try:
            await self._store.run(move)
        except UnknownInstance:
            pass  # removed meanwhile
        except StoreUnavailable:
            # Those who send it requests see for themselves; this must not hold up its end.
            self._logger.exception("The store could not be told that %s is %s.", name, state)

    def _tell(self, **changes: Any) -> None:
        report = replace(self._report, **changes)
        if report != self._report:
            self._report = report
            self._tell_report(report)


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Await to the end, however often the caller is cancelled meanwhile.

    Prefect's workers cancel a run again and again until it ends. Whoever needs this is already
    being cancelled, and bounds what it does.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


def _enter(tx: Transaction, spec: InstanceSpec, *, again: bool) -> None:
    """Let it serve; where it is only started again, not against whoever drains it meanwhile."""
    enter_instance(tx, spec)
    if not again or tx.instances[spec.name].state != "draining":
        set_instance_state(tx, spec.name, "alive", reason=None)
