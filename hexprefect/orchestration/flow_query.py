"""The query that a flow run is: registered when it first needs an instance, ended with the run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause, TerminationSignal

from hexprefect.errors import HexprefectError
from hexprefect.orchestration.background_loop import background_loop
from hexprefect.orchestration.prefect_internals import FlowRunContext, get_intent
from hexprefect.orchestration.worker_engine import RunInterrupted
from hexprefect.queue import Query
from hexprefect.scheduling import Workflow
from hexprefect.store.values import QueryState


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDescription:
    """What the scheduler should know of a flow run."""

    tenant: str
    slo_s: float
    """Seconds from the run's expected start to its deadline."""
    database: str = ""
    question: str | None = None
    workflow: Workflow | None = None
    deadline: float | None = None
    """Epoch seconds; instead of `slo_s`, for runs with a common deadline."""


class FlowQuery:
    """One flow run's query. All of it happens on the background loop."""

    def __init__(self, store_url: str, description: QueryDescription) -> None:
        self._store_url = store_url
        self.description = description
        self._registering: asyncio.Task[Query] | None = None
        self._flow_run: FlowRun | None = None
        self._ended = False

    @property
    def is_registered(self) -> bool:
        """Whether the store knows the query."""
        return self._registering is not None

    def belongs_to(self, flow_run: FlowRun | None) -> None:
        """Remember the flow run, whose final state says how the query ended."""
        if flow_run is not None:
            self._flow_run = flow_run

    async def get(self) -> Query:
        """The registered query.

        Raises:
            HexprefectError: when it cannot be registered; the next call tries again.
        """
        if self._registering is None or _has_failed(self._registering):
            self._registering = asyncio.get_running_loop().create_task(self._register())
        return await asyncio.shield(self._registering)

    async def end(
        self,
        state: QueryState,
        *,
        reason: str | None = None,
        sql: str | None = None,
        dropped_work: Sequence[str] = (),
        answer: Mapping[str, Any] | None = None,
    ) -> None:
        """End it with what the flow knows of it."""
        query = await self.get()
        await query.end(state, reason=reason, sql=sql, dropped_work=dropped_work, answer=answer)
        self._ended = True

    @property
    def flow_run_goes_well(self) -> bool:
        """Whether the flow run, at the end of its flow, has completed; also where there is none."""
        state = None if self._flow_run is None else self._flow_run.state
        return state is None or state.is_completed()

    async def end_with_flow_run(self, error: BaseException | None = None) -> None:
        """End it, if the flow has not, by what was raised or the state the flow run ended in."""
        registering = self._registering
        if registering is None or self._ended or _has_failed(registering):
            return
        state, reason = _outcome(self._flow_run, error)
        if state is not None:
            await self.end(state, reason=reason)

    async def _register(self) -> Query:
        queue = await background_loop().queue(self._store_url)
        run, wanted = self._flow_run, self.description
        arrived_at = queue.store.now()
        if run is not None and run.expected_start_time is not None:
            # Time that the run spent late in Prefect's own queue counts against its SLO.
            arrived_at = min(arrived_at, run.expected_start_time.timestamp())
        slo_s = wanted.slo_s
        if wanted.deadline is not None:
            slo_s = max(1.0, wanted.deadline - arrived_at)
        return await queue.query(
            id=None if run is None else str(run.id),
            tenant=wanted.tenant,
            slo_s=slo_s,
            database=wanted.database,
            question=wanted.question,
            workflow=wanted.workflow,
            arrived_at=arrived_at,
        )


def _has_failed(registering: asyncio.Task[Query]) -> bool:
    return registering.done() and (registering.cancelled() or registering.exception() is not None)


def _outcome(
    flow_run: FlowRun | None, error: BaseException | None
) -> tuple[QueryState | None, str | None]:
    """How the query ended; no state where the same query goes on later."""
    if error is not None:
        return _outcome_of(error)
    state = None if flow_run is None else flow_run.state
    if state is None or state.is_completed():
        return "answered", None
    if state.is_cancelled() or state.is_cancelling():
        return "cancelled", "its flow run was cancelled"
    if state.is_failed():
        return "failed", state.message or "its flow run failed"
    if state.is_crashed():
        return "failed", state.message or "its flow run crashed"
    # Running or scheduled for a retry, or paused.
    return None, None


def _outcome_of(error: BaseException) -> tuple[QueryState | None, str | None]:
    if isinstance(error, Pause):
        return None, None
    if isinstance(error, TerminationSignal):
        if get_intent() == "cancel":
            return "cancelled", "its flow run was cancelled"
        return "failed", "the process of its flow run was terminated"
    if isinstance(error, asyncio.CancelledError | RunInterrupted):
        return "cancelled", "its flow run was cancelled"
    return "failed", f"its flow run ended: {str(error) or type(error).__name__}"


class NotInHexgenFlow(HexprefectError):
    """A function for flows with `HexgenTaskRunner` was called elsewhere."""


def current_flow_query() -> FlowQuery:
    """The query of the flow run that is executing.

    Raises:
        NotInHexgenFlow: outside of a flow, or in one with another task runner.
    """
    context = FlowRunContext.get()
    query: Any = getattr(context.task_runner, "flow_query", None) if context else None
    if context is None or not isinstance(query, FlowQuery):
        raise NotInHexgenFlow(
            "There is no current query.",
            remedy="Call it in a flow that is declared with task_runner=HexgenTaskRunner(…).",
        )
    query.belongs_to(context.flow_run)
    return query


async def describe_query(**changes: Any) -> Query:
    """Say what the running flow's query is, before its first LLM task, and register it.

    Args:
        changes: fields of `QueryDescription`, for example `database` and `slo_s`.

    Raises:
        NotInHexgenFlow: outside of a flow with `HexgenTaskRunner`.
        UnknownTenant: when the tenant is not known.
        CallerMistake: when the SLO is nonsense.
    """
    flow_query = current_flow_query()
    if not flow_query.is_registered:
        flow_query.description = replace(flow_query.description, **changes)
    return await background_loop().from_other_loop(flow_query.get())


async def end_query(
    state: QueryState,
    *,
    reason: str | None = None,
    sql: str | None = None,
    dropped_work: Sequence[str] = (),
    answer: Mapping[str, Any] | None = None,
) -> None:
    """End the running flow's query with what the flow knows of it."""
    flow_query = current_flow_query()
    await background_loop().from_other_loop(
        flow_query.end(state, reason=reason, sql=sql, dropped_work=dropped_work, answer=answer)
    )
