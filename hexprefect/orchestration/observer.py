"""Tells Prefect what becomes of the fleet: instances, α, and queries at risk.

Every process that takes part in the queue looks at the store once a second, in a thread of its own;
the one that has taken part for longest tells. When it dies, the next one tells what the first may
not have told any more: an event may come twice, with the same id, but is not lost.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hexprefect.orchestration import events
from hexprefect.store import Store
from hexprefect.store.statistics import InstanceSeen, Observation, observe, queries_at_risk

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0

REMEMBER_S = 60.0
"""Longer than a dead process is taken to live."""

_MOST_FAILURES = 30
"""Looks in a row that fail, or do not find the process, before the thread gives up."""

_MOST_TOLD = 10_000


@dataclass(frozen=True, slots=True)
class Happening:
    """Something to tell, and when it happened, in epoch seconds."""

    event: str
    subject: str
    name: str
    occurred_at: float
    payload: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    flow_run_id: str | None = None

    def tell(self) -> None:
        """Hand it to Prefect."""
        events.emit(
            self.event,
            subject=self.subject,
            name=self.name,
            payload=self.payload,
            labels=self.labels,
            flow_run_id=self.flow_run_id,
            occurred_at=self.occurred_at,
        )


class FleetObserver:
    """Finds what has changed between two looks at the store. No clock, no thread, no Prefect."""

    def __init__(self, process: str) -> None:
        self.process = process
        self._instances: dict[str, tuple[str, float]] | None = None
        self._alpha: int | None = None
        self._noticed: deque[tuple[float, Happening]] = deque()
        """With the time at which each was noticed."""
        self._told: dict[tuple[str, str, float], None] = {}

    def notice(
        self, seen: Observation, risky: list[dict[str, Any]], *, now: float
    ) -> tuple[Happening, ...]:
        """What this process should tell now.

        Args:
            seen: the fleet.
            risky: of `queries_at_risk`.
            now: epoch seconds by the store's clock.
        """
        self._noticed.extend((now, happening) for happening in self._changes(seen, now))
        if seen.leader != self.process:
            while self._noticed and self._noticed[0][0] < now - REMEMBER_S:
                self._noticed.popleft()
            return ()
        found = [happening for _, happening in self._noticed]
        self._noticed.clear()
        # Queries stay at risk: who becomes the leader finds them himself.
        return tuple(one for one in (*found, *_risks(risky)) if self._is_new(one))

    def _is_new(self, happening: Happening) -> bool:
        key = (happening.event, happening.subject, happening.occurred_at)
        if key in self._told:
            return False
        self._told[key] = None
        if len(self._told) > _MOST_TOLD:
            del self._told[next(iter(self._told))]
        return True

    def _changes(self, seen: Observation, now: float) -> Iterator[Happening]:
        known, first = self._instances, self._instances is None
        for instance in seen.instances:
            before = None if known is None else known.get(instance.name)
            is_recent = now - instance.changed_at <= REMEMBER_S
            if first:
                # What it was before is not known: that it serves is no news.
                if is_recent and instance.state != "alive":
                    yield _instance_changed(instance, None)
            elif before is None or before[0] != instance.state:
                yield _instance_changed(instance, None if before is None else before[0])
        self._instances = {one.name: (one.state, one.changed_at) for one in seen.instances}
        alpha = seen.alpha
        if alpha is not None:
            is_recent = now - alpha.chosen_at <= REMEMBER_S
            if alpha.id != self._alpha and (not first or is_recent):
                yield Happening(
                    events.ALPHA_CHANGED,
                    "alpha",
                    f"α = {alpha.value:g}",
                    alpha.chosen_at,
                    {"alpha": alpha.value, "policy": alpha.policy, "reason": alpha.reason},
                )
            self._alpha = alpha.id


def _instance_changed(instance: InstanceSeen, before: str | None) -> Happening:
    return Happening(
        events.INSTANCE_STATES[instance.state],
        f"instance.{instance.name}",
        instance.name,
        instance.changed_at,
        {"before": before, "reason": instance.reason or ""},
        {"pool": instance.pool},
    )


def _risks(risky: list[dict[str, Any]]) -> Iterator[Happening]:
    for query in risky:
        yield Happening(
            events.QUERY_OVERDUE if query["overdue"] else events.QUERY_AT_RISK,
            f"query.{query['id']}",
            query["question"] or query["id"],
            # Once for each query, whichever process sees it first.
            query["deadline"] if query["overdue"] else query["arrived_at"],
            {key: query[key] for key in ("left_s", "open_s", "slo_s")},
            {"tenant": query["tenant"], "database": query["database"]},
            query["id"],
        )


_observing: dict[str, threading.Thread] = {}
_starting = threading.Lock()


def observe_store(store: Store, *, every_s: float = LOOK_EVERY_S) -> threading.Thread:
    """Observe a store for as long as its process takes part in the queue; once a process.

    Returns:
        The thread, which ends by itself.
    """
    with _starting:
        running = _observing.get(store.process)
        if running is not None and running.is_alive():
            return running
        for process in [known for known, thread in _observing.items() if not thread.is_alive()]:
            del _observing[process]
        # Prefect's settings, which say where events go, are in the context.
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run,
            args=(_observe_for_long, store, every_s),
            name="hexprefect-observer",
            daemon=True,
        )
        _observing[store.process] = thread
        thread.start()
        return thread


def _observe_for_long(store: Store, every_s: float) -> None:
    observer = FleetObserver(store.process)
    pause = threading.Event()
    failures, was_present = 0, False
    while failures < _MOST_FAILURES:
        try:
            present = look(store, observer, Happening.tell)
            if was_present and not present:
                return
            failures = 0 if present else failures + 1
            was_present = present
        except Exception:
            failures += 1
            logger.debug("The store could not be observed.", exc_info=True)
        pause.wait(every_s)


def look(store: Store, observer: FleetObserver, tell: Callable[[Happening], None]) -> bool:
    """Look once and tell what is new; whether the process takes part in the queue."""
    now = store.now()

    def read(connection: Any) -> tuple[Observation, list[dict[str, Any]]]:
        seen = observe(connection, now=now, process=store.process)
        return seen, queries_at_risk(connection, now=now)

    seen, risky = store.read(read)
    for happening in observer.notice(seen, risky, now=now):
        tell(happening)
    return seen.present
