"""The laws, checked inside a simulation while it runs (switchable: `check_laws=True`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.admission import DEFAULT_PATIENCE

if TYPE_CHECKING:
    from hexprefect.simulator.requests import Request
    from hexprefect.simulator.simulation import Simulation


class LawBroken(HexprefectError):
    """A law of the design does not hold: a bug in a policy or in the simulator."""


class Laws:
    """Watches one simulation and raises `LawBroken` at the first violation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._submitted = 0
        self._finished = 0
        self._admitted = 0
        self._last_moment = 0.0
        self._ended: set[tuple[int, int]] = set()
        """`(query, call)` that have finished, of queries that have not ended."""

    def submitted(self, request: Request) -> None:
        """Law 2, dependencies: what a request needs has finished."""
        self._submitted += 1
        run = request.run
        for need in run.query.calls[request.index].needs:
            if (run.number, need) not in self._ended:
                self._broken(2, f"call {request.index} started before call {need} it needs")

    def admitted(self, request: Request) -> None:
        """Laws 3 and 4: there was a slot for it; and of those waiting, none that comes earlier
        would have fitted in its place, or has been passed over too often."""
        self._admitted += 1
        instance = self._simulation.instances[request.instance]
        if instance.admitted > instance.depth:
            self._broken(3, f"{instance.name} holds {instance.admitted} of {instance.depth}")
        if request.admitted_at < request.ready_at:
            self._broken(2, f"request {request.number} was admitted before it was ready")
        for entry in instance.queue:
            if request.entry is None or entry >= request.entry:
                break
            if instance.would_have_fitted(entry[3], instead_of=request):
                self._broken(4, f"request {request.number} went before {entry[2]}, which fits")
            if entry[3].passed_over > DEFAULT_PATIENCE:
                self._broken(4, f"request {entry[2]} was passed over {entry[3].passed_over} times")

    def finished(self, request: Request) -> None:
        """Law 1, conservation: nothing finishes twice."""
        self._finished += 1
        run = request.run
        key = (run.number, request.index)
        if key in self._ended:
            self._broken(1, f"call {request.index} of query {run.number} finished twice")
        self._ended.add(key)
        if run.left == 1:
            for index in range(len(run.query.calls)):
                if (run.number, index) not in self._ended:
                    self._broken(1, f"query {run.number} ends without its call {index}")
                self._ended.discard((run.number, index))

    def check_event(self) -> None:
        """Laws 1 and 3, and that time does not run backwards."""
        simulation = self._simulation
        if simulation.now < self._last_moment:
            self._broken(9, f"time ran back from {self._last_moment} to {simulation.now}")
        self._last_moment = simulation.now
        waiting = sum(len(instance.queue) for instance in simulation.instances)
        inside = sum(instance.admitted for instance in simulation.instances)
        if self._submitted != waiting + inside + self._finished:
            self._broken(
                1, f"{self._submitted} submitted, but {waiting} + {inside} + {self._finished}"
            )
        delays = simulation.queue_delays()
        for index, instance in enumerate(simulation.instances):
            if len(instance.queue) + instance.admitted != simulation.unfinished[index]:
                self._broken(1, f"{instance.name} counts its unfinished requests wrongly")
            instance.check_capacity()
            if delays[index] < -1e-6:
                self._broken(8, f"{instance.name} has a negative queue delay")

    def check_end(self) -> None:
        """Laws 1 and 8: everything has ended, and idle is zero."""
        simulation = self._simulation
        if self._submitted != self._finished or self._ended:
            self._broken(1, f"{self._submitted} submitted, {self._finished} finished")
        ever_growing = simulation.policy.backlog == "ever-growing"
        delays = simulation.queue_delays()
        for index, instance in enumerate(simulation.instances):
            if not instance.is_idle or (delays[index] != 0 and not ever_growing):
                self._broken(8, f"{instance.name} is not at rest at the end")

    def _broken(self, law: int, what: str) -> None:
        raise LawBroken(f"law {law} at {self._simulation.now:.6f} s: {what}.")
