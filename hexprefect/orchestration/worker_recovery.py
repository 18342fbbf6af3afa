"""Find the flow runs of dead workers and give them to living ones.

A worker signs each flow run it takes (`infrastructure_pid`), and the Prefect server knows when each
worker was last heard of. All times compared here are the server's, so that the clocks of the
machines do not matter.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID, uuid4

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, Worker
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Cancelled, Crashed

from hexprefect.orchestration.worker_settings import AnyLogger
from hexprefect.orchestration.worker_task_runs import end_open_task_runs

_PREFIX = "hexgen"
RELEASED = f"{_PREFIX}:released"
"""The signature of a run that was taken from its worker and waits for another."""
RECOVERIES_LABEL = "hexprefect.recoveries"
_RUNS_A_PAGE = 200
_UNKNOWN_PATIENCE_S = 90.0
_TELLING_S = 10.0
"""A run that has just left this process may be about to be told to have crashed."""

Verdict = Literal["leave", "reschedule", "cancel"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Who runs a flow run: one life of one worker."""

    host: str
    pid: int
    life: str
    """Differs between two processes that use the same worker name one after the other."""
    worker: str

    @classmethod
    def of_this_process(cls, worker: str) -> Owner:
        """The owner that this process is when it works under the name `worker`."""
        host = platform.node().replace(":", "-") or "unknown"
        return cls(host=host, pid=os.getpid(), life=uuid4().hex[:12], worker=worker)

    @property
    def text(self) -> str:
        """The signature, as written to `infrastructure_pid`."""
        return f"{_PREFIX}:{self.host}:{self.pid}:{self.life}:{self.worker}"

    @classmethod
    def parse(cls, text: str | None) -> Owner | None:
        """Read a signature; None where it is not one of ours."""
        parts = (text or "").split(":", 4)
        if len(parts) != 5 or parts[0] != _PREFIX or not parts[2].isdigit():
            return None
        return cls(host=parts[1], pid=int(parts[2]), life=parts[3], worker=parts[4])


@dataclass(frozen=True, slots=True)
class Census:
    """Which workers of a pool are alive, at one moment of the server's clock."""

    now: datetime.datetime
    heard_of: Mapping[str, datetime.datetime]
    """When each worker was last heard of."""
    dead_after_s: Mapping[str, float]

    @classmethod
    def of(cls, workers: Sequence[Worker], *, dead_after_heartbeats: float) -> Census:
        """Built from the server's list; the newest heartbeat tells the server's time."""
        heard = {w.name: w.last_heartbeat_time for w in workers if w.last_heartbeat_time}
        now = max(heard.values(), default=datetime.datetime.now(datetime.UTC))
        limits = {
            w.name: (w.heartbeat_interval_seconds or 30) * dead_after_heartbeats for w in workers
        }
        return cls(now=now, heard_of=heard, dead_after_s=limits)

    def is_alive(self, worker: str) -> bool:
        """Whether the worker was heard of recently enough."""
        heard = self.heard_of.get(worker)
        if heard is None:
            return False
        return (self.now - heard).total_seconds() <= self.patience_s(worker)

    def first_alive(self) -> str | None:
        """The one that searches for all, so that two do not reschedule the same run twice."""
        return min((name for name in self.heard_of if self.is_alive(name)), default=None)

    def patience_s(self, worker: str) -> float:
        """After how long without a heartbeat the worker counts as dead."""
        return self.dead_after_s.get(worker, _UNKNOWN_PATIENCE_S)


def judge(
    flow_run: FlowRun,
    census: Census,
    *,
    me: Owner,
    mine: Collection[UUID],
    first_search: bool,
    unowned_seconds: float,
) -> Verdict:
    """Whether a flow run that is not finished has lost its worker.

    Args:
        flow_run: Pending, Running or Cancelling in our pool.
        census: the workers of the pool.
        me: this worker's signature.
        mine: the runs that this process had in hand after the server told of `flow_run`.
        first_search: this process has searched the pool for the first time: whatever an earlier
            process of the same name has left is orphaned, however fresh its last heartbeat looks.
        unowned_seconds: how long a run may go without a signature.
    """
    state = flow_run.state
    if state is None or flow_run.id in mine:
        return "leave"
    orphaned: Verdict = "cancel" if state.type == StateType.CANCELLING else "reschedule"
    age = (census.now - state.timestamp).total_seconds()
    owner = Owner.parse(flow_run.infrastructure_pid)
    if owner is None:
        # Nobody to wait for: a rescheduled run that is cancelled before it is taken again.
        waits = state.type != StateType.CANCELLING and age <= unowned_seconds
        return "leave" if waits else orphaned
    if owner.life == me.life:
        # Taken here and lost: its end could not be told, because the server was away for too long.
        return orphaned if age > _TELLING_S else "leave"
    if owner.worker == me.worker:
        return orphaned if first_search else "leave"
    if census.is_alive(owner.worker):
        return "leave"
    # A run that has just been taken again still carries the signature of its last worker, until the
    # next one has signed.
    if state.type == StateType.PENDING and age <= census.patience_s(owner.worker):
        return "leave"
    return orphaned


class Recovery:
    """Searches one work pool for runs that have lost their worker."""

    def __init__(
        self,
        *,
        pool: str,
        logger: AnyLogger,
        dead_after_heartbeats: float,
        unowned_seconds: float,
        max_recoveries: int,
    ) -> None:
        self._pool = pool
        self._logger = logger
        self._dead_after_heartbeats = dead_after_heartbeats
        self._unowned_seconds = unowned_seconds
        self._max_recoveries = max_recoveries
        self._searched = False

    async def census(self, client: PrefectClient) -> Census:
        """Ask the server which workers of the pool are alive."""
        workers = await client.read_workers_for_work_pool(self._pool)
        return Census.of(workers, dead_after_heartbeats=self._dead_after_heartbeats)

    async def search(
        self,
        client: PrefectClient,
        *,
        me: Owner,
        mine: Callable[[], Collection[UUID]],
        doubtful: bool = False,
    ) -> int:
        """Reschedule, or mark as cancelled, every run that has lost its worker.

        One worker of the pool searches for all; the others have something to search for when they
        start, and when a run has left them of which they could not tell the end.

        Args:
            client: of the Prefect API.
            me: this worker's signature.
            mine: tells the runs that this process has in hand.
            doubtful: a run may have left this process in a state that is not final.

        Returns:
            How many there were.
        """
        first_search = not self._searched
        census = await self.census(client)
        if not (first_search or doubtful or census.first_alive() == me.worker):
            return 0
        recovered = 0
        unfinished = await self._unfinished(client)
        # In this order: what was taken since the server answered is not in its answer.
        in_hand = mine()
        for flow_run in unfinished:
            verdict = judge(
                flow_run,
                census,
                me=me,
                mine=in_hand,
                first_search=first_search,
                unowned_seconds=self._unowned_seconds,
            )
            if verdict != "leave" and await self._recover(client, flow_run, verdict, me=me):
                recovered += 1
        self._searched = True
        return recovered

    async def _unfinished(self, client: PrefectClient) -> list[FlowRun]:
        types = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
        runs: list[FlowRun] = []
        while True:
            page = await client.read_flow_runs(
                flow_run_filter=FlowRunFilter(
                    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
                ),
                work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[self._pool])),
                limit=_RUNS_A_PAGE,
                offset=len(runs),
            )
            runs.extend(page)
            if len(page) < _RUNS_A_PAGE:
                return runs

    async def _recover(
        self, client: PrefectClient, seen: FlowRun, verdict: Verdict, *, me: Owner
    ) -> bool:
        try:
            flow_run = await client.read_flow_run(seen.id)
            if flow_run.state is None or seen.state is None or flow_run.state.id != seen.state.id:
                return False
            owner = Owner.parse(flow_run.infrastructure_pid)
            lost = _why_lost(owner, me)
            state: State[Any]
            if verdict == "cancel":
                state = Cancelled(message=f"Cancelled; {lost}.")
            elif (before := _recoveries(flow_run)) >= self._max_recoveries:
                state = Crashed(
                    message=f"Given up: {lost}, for the {before + 1}th time. A run that ends its "
                    "worker each time (out of memory, a crash in native code) needs a `process` "
                    "work pool."
                )
            else:
                state = AwaitingRetry(message=f"Rescheduled: {lost}.")
                # First the signature: a run that is scheduled and still signed by the dead worker
                # would be found again while its next worker takes it.
                await client.update_flow_run_labels(seen.id, {RECOVERIES_LABEL: before + 1})
                await client.update_flow_run(seen.id, infrastructure_pid=RELEASED)
            await end_open_task_runs(client, [seen.id], why=f"Its flow run was ended: {lost}.")
            await client.set_flow_run_state(seen.id, state, force=True)
        except ObjectNotFound:
            return False
        self._logger.warning("Flow run %r: %s", seen.name, state.message)
        return True


def _why_lost(owner: Owner | None, me: Owner) -> str:
    if owner is None:
        return "no worker signed for it"
    if owner.life == me.life:
        return f"its worker {owner.worker!r} could not reach the server for too long"
    return f"its worker {owner.worker!r} is gone"


def _recoveries(flow_run: FlowRun) -> int:
    count = (flow_run.labels or {}).get(RECOVERIES_LABEL, 0)
    return count if isinstance(count, int) else 0
