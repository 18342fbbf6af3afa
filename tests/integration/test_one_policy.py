"""Law 7: a run of the simulator, made again with the store, gives the same appointments.

The simulator says when queries arrive and requests finish; the store is given the same at the same
moments, on its own clock that is set by hand, and has to decide everything itself: instance, order,
admission, takeovers, depth, and what it predicts from what has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import func, select

import hexprefect.store.store as store_module
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.simulator import Call, EngineOptions, Policy, Query, Simulation, named_policy
from hexprefect.simulator.cluster import Cluster, Instance
from hexprefect.simulator.generator import Generator
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.simulator.recorded import changed_decisions
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, check_laws, tables
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.alpha import set_policy
from hexprefect.store.fleet import enter_instance
from hexprefect.store.transaction import Transaction

START = 1_800_000_000.0
"""The simulator's 0 on the store's clock. Whole seconds, so that sums round alike on both."""

TICK = 1 / 1024

SLOTS = 12

CLUSTER = Cluster(
    "two kinds",
    tuple(
        Instance(
            name,
            Profile(name, 64 * TICK, slow * TICK, 16 * slow * TICK, 1 / 64, None),
            EngineOptions(slots=SLOTS),
        )
        for name, slow in (("a", 1), ("b", 1), ("c", 4))
    ),
)

EXPECTED = 120.0
"""Output tokens expected of a stage of which nothing is known, on both sides."""


@dataclass
class Event:
    """What happened at one moment, in this order."""

    at: float
    finished: list[Any] = field(default_factory=list)
    """Requests."""
    submitted: list[tuple[Any, int]] = field(default_factory=list)
    """Calls of queries: `(run, index)`."""
    ended: list[Any] = field(default_factory=list)
    """Queries."""


class Recorded(Simulation):
    """Writes down what happens, and where and when each request starts."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.events: list[Event] = []
        self.started: dict[str, tuple[str, float]] = {}

    def _arrive(self, query: Query) -> None:
        self.events.append(Event(self.now))
        super()._arrive(query)

    def _submit(self, run: Any, index: int) -> None:
        self.events[-1].submitted.append((run, index))
        super()._submit(run, index)

    def _start(self, request: Any) -> None:
        super()._start(request)
        instance = self.instances[request.instance].name
        self.started[request_id_of(request.run, request.index)] = (instance, self.now)

    def _finish(self, request: Any) -> None:
        self.events.append(Event(self.now, finished=[request]))
        super()._finish(request)

    def _end(self, run: Any) -> None:
        self.events[-1].ended.append(run)
        super()._end(run)


class Replay:
    """Makes the same moves in a store, at the same moments."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.at = 0.0
        begin = store_module.begin_scheduling
        monkeypatch.setattr(
            store_module,
            "begin_scheduling",
            lambda connection, reads: (START + self.at, begin(connection, reads)[1]),
        )
        self.arrived: dict[int, NewQuery] = {}
        for instance in CLUSTER.instances:
            spec = InstanceSpec(
                instance.name, f"http://{instance.name}", instance.profile, instance.options.slots
            )
            store.transact(lambda tx, spec=spec: enter_instance(tx, spec))

    def make(self, event: Event) -> None:
        self.at = event.at
        for request in event.finished:
            self.store.transact(lambda tx, request=request: self._finish(tx, request))
        for run, index in event.submitted:
            self.store.transact(lambda tx, run=run, index=index: self._submit(tx, run, index))
        for run in event.ended:
            self.store.transact(
                lambda tx, run=run: move_query.end_query(tx, f"q{run.number}", state="answered")
            )

    def _finish(self, tx: Transaction, request: Any) -> None:
        request_id = request_id_of(request.run, request.index)
        call = request.run.query.calls[request.index]
        outcome = Outcome(
            {"text": ""},
            input_tokens=call.input_tokens,
            output_tokens=call.output_tokens,
            cached_tokens=call.input_tokens - request.uncached_tokens,
        )
        database = request.run.query.database
        move_request.finish(
            tx, request_id=request_id, attempt=1, outcome=outcome, database=database
        )

    def _submit(self, tx: Transaction, run: Any, index: int) -> None:
        query, call = run.query, run.query.calls[index]
        if run.number not in self.arrived:
            self.arrived[run.number] = new = NewQuery(
                id=f"q{run.number}",
                tenant="default",
                database=query.database,
                slo_s=run.deadline - run.arrived_at,
                arrived_at=START + run.arrived_at,
            )
            move_query.register_query(tx, new)
        move_request.submit(
            tx,
            NewRequest(
                id=request_id_of(run, index),
                query_id=f"q{run.number}",
                stage=call.stage,
                size=RequestSize(call.input_tokens, EXPECTED, call.prefix),
                deadline=START + run.deadline,
                database=query.database,
                needs=tuple(request_id_of(run, need) for need in call.needs),
                visit=query.visits[index],
            ),
        )

    def started(self) -> dict[str, tuple[str, float]]:
        row = tables.requests.c
        rows = self.store.read(
            lambda c: c.execute(select(row.id, row.instance, row.admitted_at)).all()
        )
        return {name: (instance, at - START) for name, instance, at in rows}

    def follow(self, policy: Policy) -> None:
        """Set the store's policy to what the simulation runs under."""
        self.store.transact(
            lambda tx: set_policy(
                tx,
                replace(
                    tx.settings,
                    alpha=policy.alpha,
                    order=policy.order,
                    slowdown=policy.slowdown,
                    late_penalty=policy.late_penalty,
                    stretch=policy.stretch,
                ),
                reason="as simulated",
            )
        )

    def decisions(self) -> list[tuple[str, dict[str, Any]]]:
        row = tables.decisions.c
        return self.store.read(lambda c: c.execute(select(row.why, row.record)).all())

    def late(self) -> int:
        row = tables.requests.c
        late = select(func.count()).where(row.late)
        return int(self.store.read(lambda c: c.execute(late).scalar_one()))


def request_id_of(run: Any, index: int) -> str:
    return f"q{run.number:04}-{index:03}"


def workload(*, shared: bool) -> Iterator[tuple[float, Query]]:
    """Sixty queries, at first slowly and then too many; deadlines in whole ticks. Their prompts
    share their beginnings, or nothing."""
    now = 0.0
    for number, query in enumerate(Generator(family="spider", seed=5).some(60)):
        calls = tuple(
            Call(
                each.stage,
                each.input_tokens // 4 + 1,
                each.output_tokens // 4,
                each.needs,
                tuple((key, tokens // 4) for key, tokens in each.prefix if shared),
            )
            for each in query.calls
        )
        now += (6.0, 1.0)[number > 15]
        yield now, Query(calls, database=query.database, slo_s=60.0 + number % 7)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("hexprefect", False),
        pytest.param("hexprefect", True, marks=pytest.mark.slow),
        pytest.param("hexprefect-attainment", False, marks=pytest.mark.slow),
    ],
    ids=["alone", "sharing prefixes", "putting off what is late"],
)
def test_the_store_appoints_as_the_simulator_does(
    store_url, open_store, monkeypatch, name: str, shared: bool
):
    stages = {call.stage for _, query in workload(shared=shared) for call in query.calls}
    knowledge = Knowledge(CLUSTER.profiles, expected=dict.fromkeys(stages, EXPECTED))
    policy = named_policy(name)
    simulation = Recorded(CLUSTER, policy, knowledge=knowledge)
    simulation.run(workload(shared=shared))

    replay = Replay(open_store(store_url), monkeypatch)
    replay.follow(policy)
    for event in simulation.events:
        replay.make(event)

    started = replay.started()
    assert len(started) > 500
    assert set(started) == set(simulation.started)
    for request_id, (instance, at) in simulation.started.items():
        assert started[request_id] == (instance, pytest.approx(at, abs=1e-5)), request_id
    # It was worth comparing: some waited, some were taken over, some instances were less deep.
    waited = [at for _, at in simulation.started.values()]
    assert len(set(waited)) > 300
    decisions = replay.decisions()
    assert any("would end it sooner" in why for why, _ in decisions)
    assert shared or min(instance.depth for instance in simulation.instances) < SLOTS
    assert (replay.late() > 0) == (policy.late_penalty is not None)
    # The log that the store keeps of them gives each appointment again, too.
    assert changed_decisions(record for _, record in decisions) == []
    now = replay.store.now()
    assert replay.store.read(lambda connection: check_laws(connection, now=now)) == []
