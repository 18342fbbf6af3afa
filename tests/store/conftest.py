"""Processes that share one store, each with the transitions as methods."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from hexprefect.scheduling import Profile, RequestSize, Workflow
from hexprefect.store import (
    Grant,
    InstanceSpec,
    InstanceView,
    NewQuery,
    NewRequest,
    Outcome,
    RegisteredQuery,
    Store,
    Submitted,
    Violation,
    check_laws,
    leases,
    tables,
)
from hexprefect.store import fleet as move_instance
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.views import instance_views, request_counts

FAST = Profile("fast", fixed_s=0.1, input_s_per_token=0.001, output_s_per_token=0.01)
SLOW = Profile("slow", fixed_s=0.4, input_s_per_token=0.004, output_s_per_token=0.04)

_ids = itertools.count()


@dataclass
class Process:
    """One process's door to a store, as a test speaks of it."""

    store: Store
    granted: list[Grant] = field(default_factory=list)
    lawful: bool = True
    """Whether the laws must hold when the test is over; not where one was broken on purpose."""

    @property
    def id(self) -> str:
        return self.store.process

    def join(self, lease_s: float = 60.0) -> None:
        self.store.transact(lambda tx: leases.join(tx, lease_s=lease_s))

    def instance(
        self, name: str, profile: Profile = FAST, slots: int = 1, **fields: Any
    ) -> InstanceSpec:
        spec = InstanceSpec(name=name, url=f"http://{name}", profile=profile, slots=slots, **fields)
        self.store.transact(lambda tx: move_instance.enter_instance(tx, spec))
        return spec

    def set_state(self, name: str, state: Any, reason: str | None = None) -> None:
        self.store.transact(
            lambda tx: move_instance.set_instance_state(tx, name, state, reason=reason)
        )

    def query(self, id: str | None = None, slo_s: float = 100.0, **fields: Any) -> RegisteredQuery:
        new = NewQuery(
            id=id or f"query-{next(_ids)}",
            slo_s=slo_s,
            **{
                "tenant": "default",
                "database": "shop",
                "arrived_at": self.store.now(),
                **fields,
            },
        )
        return self.store.transact(lambda tx: move_query.register_query(tx, new))

    def request(
        self,
        query: RegisteredQuery,
        id: str | None = None,
        *,
        stage: str = "ask",
        input_tokens: int = 100,
        output_tokens: float = 10.0,
        deadline: float | None = None,
        prefix: tuple[tuple[str, int], ...] = (),
        workflow: Workflow | None = None,
        **fields: Any,
    ) -> NewRequest:
        return NewRequest(
            id=id or f"request-{next(_ids)}",
            query_id=query.id,
            stage=stage,
            size=RequestSize(input_tokens, output_tokens, prefix),
            deadline=query.deadline if deadline is None else deadline,
            database="shop",
            workflow=workflow,
            predict_output=False,
            **fields,
        )

    def submit(self, query: RegisteredQuery, id: str | None = None, **fields: Any) -> Submitted:
        return self.submit_request(self.request(query, id, **fields))

    def submit_request(self, request: NewRequest) -> Submitted:
        return self.store.enqueue_submit(request).result(timeout=30)

    def finish(
        self,
        submitted: Submitted | Grant,
        *,
        result: Mapping[str, Any] | None = None,
        **counts: Any,
    ) -> None:
        grant = submitted.grant if isinstance(submitted, Submitted) else submitted
        assert grant is not None, "it does not run"
        outcome = Outcome(
            result={"text": "SELECT 1"} if result is None else result,
            **{"input_tokens": 100, "output_tokens": 10, **counts},
        )
        self.store.transact(
            lambda tx: move_request.finish(
                tx,
                request_id=grant.request_id,
                attempt=grant.attempt,
                outcome=outcome,
                database="shop",
            )
        )

    def fail(self, submitted: Submitted, error: str = "it broke") -> None:
        grant = submitted.grant
        assert grant is not None, "it does not run"
        self.store.transact(
            lambda tx: move_request.fail(
                tx, request_id=grant.request_id, attempt=grant.attempt, error=error
            )
        )

    def give_back(self, submitted: Submitted, why: str = "it hangs") -> None:
        grant = submitted.grant
        assert grant is not None, "it does not run"
        self.store.transact(
            lambda tx: move_request.give_back(
                tx, request_id=grant.request_id, attempt=grant.attempt, why=why
            )
        )

    def cancel(self, request_id: str) -> bool:
        return self.store.transact(
            lambda tx: move_request.cancel(tx, request_id=request_id, why="not wanted")
        )

    def end(self, query: RegisteredQuery, state: Any = "answered", **fields: Any) -> None:
        self.store.transact(lambda tx: move_query.end_query(tx, query.id, state=state, **fields))

    def take_admitted(self) -> list[Grant]:
        return self.store.transact(move_request.start_admitted)

    def expire(self) -> tuple[str, ...]:
        return self.store.transact(leases.expire)

    # -- what is seen ---------------------------------------------------------------------------

    def row(self, request_id: str) -> dict[str, Any]:
        found = self.store.read(
            lambda connection: connection.execute(
                select(tables.requests).where(tables.requests.c.id == request_id)
            ).one()
        )
        return found._asdict()

    def query_row(self, query: RegisteredQuery) -> dict[str, Any]:
        found = self.store.read(
            lambda connection: connection.execute(
                select(tables.queries).where(tables.queries.c.id == query.id)
            ).one()
        )
        return found._asdict()

    def attempts(self, request_id: str) -> list[dict[str, Any]]:
        rows = self.store.read(
            lambda connection: connection.execute(
                select(tables.attempts)
                .where(tables.attempts.c.request_id == request_id)
                .order_by(tables.attempts.c.id)
            ).all()
        )
        return [row._asdict() for row in rows]

    def state(self, request_id: str) -> str:
        return str(self.row(request_id)["state"])

    def counts(self) -> dict[str, int]:
        return {state: count for state, count in self.store.read(request_counts).items() if count}

    def view(self, name: str) -> InstanceView:
        return self.store.read(instance_views)[name]

    def violations(self, *, after_s: float = 0.0) -> list[Violation]:
        now = self.store.now() + after_s
        return self.store.read(lambda connection: check_laws(connection, now=now))

    def snapshot(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table that tells of work: to show that nothing has changed."""
        return self.store.read(
            lambda connection: {
                table.name: [
                    tuple(map(repr, row))
                    for row in connection.execute(
                        select(table).order_by(*table.primary_key.columns)
                    )
                ]
                for table in (
                    tables.requests,
                    tables.attempts,
                    tables.decisions,
                    tables.instances,
                    tables.queries,
                )
            }
        )


NewProcess = Callable[..., Process]


@pytest.fixture
def new_process(store_url: str, open_store: Callable[..., Store]) -> Iterator[NewProcess]:
    """A further process on the test's store; it has joined. The laws hold when the test is over."""
    processes: list[Process] = []

    def new(id: str | None = None, *, lease_s: float = 60.0) -> Process:
        process = Process(open_store(store_url, process=id))
        process.store.on_granted = process.granted.extend
        process.join(lease_s)
        processes.append(process)
        return process

    yield new
    if processes and all(process.lawful for process in processes):
        assert processes[0].violations() == []


@pytest.fixture
def process(new_process: NewProcess) -> Process:
    """The first process on a fresh store."""
    return new_process("first")


@pytest.fixture
def other(new_process: NewProcess) -> Process:
    """A second process on the same store."""
    return new_process("second")
