"""Stop flow runs that are inside the worker, and tell the server how they ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.logging.loggers import flow_run_logger
from prefect.states import AwaitingRetry, Cancelled

from hexprefect.orchestration.worker_engine import Ending, RunControl
from hexprefect.orchestration.worker_recovery import RELEASED

_INTERRUPT_INTERVAL_S = 1.0
_STUBBORN_AFTER_S = 10.0
_TELL_ATTEMPTS = 4
_TELL_PAUSE_S = 0.5


class RunEnder:
    """Ends runs from outside.

    The engine of an interrupted run says nothing to the server (see `worker_engine`): here is the
    one place that does, so that a run which does not let itself be interrupted gets its state in
    time, and one that ends late changes nothing.

    Args:
        client: of the Prefect API.
        interrupt: asks a run to stop.
        cancel_seconds: how long its state waits for that.
    """

    def __init__(
        self,
        client: PrefectClient,
        *,
        interrupt: Callable[[RunControl], None],
        cancel_seconds: float,
    ) -> None:
        self._client = client
        self._interrupt = interrupt
        self._cancel_seconds = cancel_seconds

    async def stop(
        self, control: RunControl, ending: Ending, *, leave_stubborn: bool = False
    ) -> None:
        """Interrupt a run, again and again, until it has ended.

        Args:
            control: of the run; one that is already being stopped keeps its reason.
            ending: why.
            leave_stubborn: give up after `cancel_seconds`, because the process is about to end.
        """
        if control.ending is None:
            control.ending = ending
        started = time.monotonic()
        warned = False
        while control.done is not None and not control.done.done():
            self._interrupt(control)
            remaining = self._cancel_seconds - (time.monotonic() - started)
            pause = remaining if 0 < remaining < _INTERRUPT_INTERVAL_S else _INTERRUPT_INTERVAL_S
            await asyncio.wait({control.done}, timeout=pause)
            waited = time.monotonic() - started
            if waited >= self._cancel_seconds:
                await self.settle(control)
                if leave_stubborn:
                    break
            if waited >= _STUBBORN_AFTER_S and not warned:
                warned = True
                flow_run_logger(control.flow_run).error(
                    "The flow run does not let itself be interrupted; it holds its slot until its "
                    "present call returns."
                )
        await self.settle(control)
        if control.abandoned is not None and not control.abandoned.done():
            control.abandoned.set_result(None)

    async def settle(self, control: RunControl) -> None:
        """Tell the server, once, how an interrupted run ended; whoever asks waits until it is told.

        A server that is away is tried again for some seconds; then the run is left to the search
        for orphans (see `worker_recovery`).
        """
        if control.settling is None:
            control.settling = asyncio.create_task(self._tell(control))
        await asyncio.shield(control.settling)

    async def _tell(self, control: RunControl) -> None:
        if _had_finished(control):
            return
        state: State[Any]
        if control.ending == "cancel":
            state = Cancelled(message="Cancelled on request.")
        elif control.ending == "reschedule":
            state = AwaitingRetry(message="Rescheduled: its worker was stopped.")
        else:
            return  # somebody else has the run, and its state with it
        for attempt in range(1, _TELL_ATTEMPTS + 1):
            try:
                if control.ending == "reschedule":
                    await self._client.update_flow_run(
                        control.flow_run_id, infrastructure_pid=RELEASED
                    )
                await self._client.set_flow_run_state(control.flow_run_id, state, force=True)
            except ObjectNotFound:
                return
            except httpx.HTTPError as error:
                flow_run_logger(control.flow_run).warning(
                    "The end of the flow run could not be reported: %s.", error
                )
                await asyncio.sleep(_TELL_PAUSE_S * attempt)
            else:
                return


def _had_finished(control: RunControl) -> bool:
    """Whether the run had come to its own end before the interruption reached it."""
    done = control.done
    if done is None or not done.done() or control.winding_down or done.exception() is not None:
        return False
    state = done.result()
    return state is not None and state.is_final()
