"""Law 7: a run of the simulator, made again with the store, gives the same appointments.

The simulator says when queries arrive and requests finish; the store is given the same at the same
moments, on its own clock that is set by hand, and has to decide everything itself: instance, order,
admission, takeovers, depth, and what it predicts from what has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select

import hexprefect.store.store as store_module
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.simulator import Call, EngineOptions, Query, Simulation, named_policy
from hexprefect.simulator.cluster import Cluster, Instance
from hexprefect.simulator.generator import Generator
from hexprefect.simulator.knowledge import Knowledge
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, check_laws, tables
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.fleet import enter_instance
from hexprefect.store.transaction import Transaction

START = 1_800_000_000.0
"""The simulator's 0 on the store's clock. Whole seconds, so that sums round alike on both."""

TICK = 1 / 1024

CLUSTER = Cluster(
    "two kinds",
    tuple(
        Instance(
            name,
            Profile(name, 64 * TICK, slow * TICK, 16 * slow * TICK, 1 / 64, None),
            EngineOptions(slots=12, prefill="first"),
        )
        for name, slow in (("a", 1), ("b", 1), ("c", 4))
    ),
)

EXPECTED = 120.0
"""Output tokens expected of a stage of which nothing is known, on both sides."""


class Recorded(Simulation):
    """Writes down what happens: `(moment, requests finished, requests submitted, queries ended)`."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.events: list[tuple[float, list[Any], list[Any], list[Any], list[Any]]] = []
        self.appointed: dict[tuple[int, int], str] = {}

    def _event(self) -> tuple[float, list[Any], list[Any], list[Any], list[Any]]:
        return self.events[-1]

    def _arrive(self, query: Query) -> None:
        self.events.append((self.now, [], [], [], [query]))
        super()._arrive(query)

    def _submit(self, run: Any, index: int) -> None:
        self._event()[2].append((run, index))
        super()._submit(run, index)

    def _start(self, request: Any) -> None:
        super()._start(request)
        key = (request.run.number, request.index)
        self.appointed[key] = self.instances[request.instance].name

    def _finish(self, request: Any) -> None:
        self.events.append((self.now, [request], [], [], []))
        super()._finish(request)

    def _end(self, run: Any) -> None:
        self._event()[3].append(run)
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

    def make(self, event: tuple[float, list[Any], list[Any], list[Any], list[Any]]) -> None:
        self.at, finished, submitted, ended, _ = event

        def moves(tx: Transaction) -> None:
            for request in finished:
                self._finish(tx, request)
            for run, index in submitted:
                self._submit(tx, run, index)

        self.store.transact(moves)
        for run in ended:
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

    def appointed(self) -> dict[str, str]:
        rows = self.store.read(
            lambda c: c.execute(select(tables.requests.c.id, tables.requests.c.instance)).all()
        )
        return dict(map(tuple, rows))


def request_id_of(run: Any, index: int) -> str:
    return f"q{run.number:04}-{index:03}"


def workload() -> Iterator[tuple[float, Query]]:
    """Sixty queries, at first slowly and then too many; deadlines in whole ticks."""
    now = 0.0
    for number, query in enumerate(Generator(family="spider", seed=5).some(60)):
        calls = tuple(
            Call(c.stage, c.input_tokens // 4 + 1, c.output_tokens // 4, c.needs) for c in query.calls
        )
        now += (6.0, 1.0)[number > 15]
        yield now, Query(calls, database=query.database, slo_s=60.0 + number % 7)


def test_the_store_appoints_as_the_simulator_does(store_url, open_store, monkeypatch):
    stages = {call.stage for _, query in workload() for call in query.calls}
    knowledge = Knowledge(CLUSTER.profiles, expected=dict.fromkeys(stages, EXPECTED))
    simulation = Recorded(CLUSTER, named_policy("hexprefect"), knowledge=knowledge)
    simulation.run(workload())

    replay = Replay(open_store(store_url), monkeypatch)
    for event in simulation.events:
        replay.make(event)

    appointed = replay.appointed()
    wanted = {f"q{query:04}-{index:03}": name for (query, index), name in simulation.appointed.items()}
    assert len(wanted) > 500
    different = {key: (wanted[key], appointed.get(key)) for key in wanted if wanted[key] != appointed.get(key)}
    assert different == {}
    moved = [row for row in decisions(replay.store) if "would end it sooner" in row.why]
    assert moved, "the workload shows no takeover"
    now = replay.store.now()
    assert replay.store.read(lambda connection: check_laws(connection, now=now)) == []


def decisions(store: Any) -> list[Any]:
    return list(store.read(lambda connection: connection.execute(select(tables.decisions)).all()))
