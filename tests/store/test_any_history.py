"""Whatever processes do, in whatever order, and whoever dies: every law holds after each step."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hexprefect.errors import HexprefectError
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import (
    Grant,
    InstanceSpec,
    LeaseLost,
    NewQuery,
    NewRequest,
    Outcome,
    Store,
    check_laws,
    leases,
)
from hexprefect.store import fleet as move_instance
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.alpha import set_policy
from hexprefect.store.transaction import Transaction
from hexprefect.store.views import instance_views, open_request_states, query_record, request_counts

INSTANCES = ("m0", "m1", "m2")
QUERIES = ("q0", "q1", "q2")
PROCESSES = range(3)
processes = st.sampled_from(PROCESSES)
queries = st.sampled_from(QUERIES)
profiles = st.builds(
    Profile,
    name=st.just("p"),
    fixed_s=st.sampled_from((0.0, 0.1, 1.0)),
    input_s_per_token=st.sampled_from((0.0, 0.001)),
    output_s_per_token=st.sampled_from((0.01, 0.05)),
    batch_growth=st.sampled_from((0.0, 0.05)),
    kv_tokens=st.sampled_from((None, 300, 1000)),
)


class Histories(RuleBasedStateMachine):
    """Three processes on one store. Each rule is one commit, of one transition or of several."""

    template: Path

    @initialize(profile=profiles, slots=st.integers(1, 3))
    def begin(self, profile: Profile, slots: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        path = self.folder / "store.sqlite"
        shutil.copy(self.template, path)
        self.stores = [Store(f"sqlite:///{path}", process=f"p{index}") for index in PROCESSES]
        self.grants: list[dict[str, Grant]] = [{} for _ in PROCESSES]
        self.late: list[tuple[int, Grant]] = []
        for index, store in enumerate(self.stores):
            store.on_granted = lambda grants, index=index: self._granted(index, grants)
            store.transact(lambda tx: leases.join(tx, lease_s=3600))
        self.owner: dict[str, int] = {}
        self.deadline: dict[str, float] = {}
        self.submitted = 0
        self._enter("m0", profile, slots)
        for process, query in enumerate(QUERIES):
            self._register(process, query, slo_s=60.0)
            self._submit(query, count=2, tokens=100)

    # -- what processes do ----------------------------------------------------------------------

    @rule(process=processes, query=queries, slo_s=st.sampled_from((0.001, 5.0, 60.0)))
    def register(self, process: int, query: str, slo_s: float) -> None:
        self._register(process, query, slo_s)

    def _register(self, process: int, query: str, slo_s: float) -> None:
        new = NewQuery(query, "default", "", slo_s, self.stores[process].now())
        registered = self.stores[process].transact(lambda tx: move_query.register_query(tx, new))
        self.owner[query] = process
        self.deadline[query] = registered.deadline

    @rule(query=queries, count=st.integers(1, 6), tokens=st.sampled_from((10, 100, 250, 900)))
    def submit(self, query: str, count: int, tokens: int) -> None:
        """New requests of a query, which is asked again where it has ended."""
        if not self._is_running(query):
            self._register(self.owner[query], query, slo_s=60.0)
        self._submit(query, count, tokens)

    @rule(query=queries, tokens=st.sampled_from((10, 250)))
    def submit_again(self, query: str, tokens: int) -> None:
        """The last request once more, perhaps with other inputs: a repetition or a retry."""
        self.submitted -= 1
        self._submit(query, 1, tokens)

    def _is_running(self, query: str) -> bool:
        state = self.stores[0].read(lambda connection: query_record(connection, query))["state"]
        return bool(state == "running")

    def _submit(self, query: str, count: int, tokens: int) -> None:
        process = self.owner[query]
        for _ in range(count):
            self.submitted += 1
            request = NewRequest(
                id=f"{query}-{self.submitted}",
                query_id=query,
                stage="s",
                size=RequestSize(tokens, 20.0, (("static", 8), ("schema", 40))),
                deadline=self.deadline[query],
                fingerprint=str(tokens),
                predict_output=False,
            )
            self._run(process, lambda tx, request=request: move_request.submit(tx, request))

    @rule(process=processes)
    def take_admitted(self, process: int) -> None:
        grants = self.stores[process].transact(move_request.start_admitted)
        self._granted(process, grants)

    @rule(data=st.data(), how=st.sampled_from(("finish", "fail", "give back", "cancel")))
    def end_one(self, data: st.DataObject, how: str) -> None:
        held = [(index, grant) for index in PROCESSES for grant in self.grants[index].values()]
        if not held:
            return
        process, grant = data.draw(st.sampled_from(held))
        self._end(process, grant, how)

    @precondition(lambda self: self.late)
    @rule(data=st.data(), how=st.sampled_from(("finish", "fail", "give back")))
    def end_late(self, data: st.DataObject, how: str) -> None:
        """A grant that is not held any more: whatever is done with it changes nothing."""
        process, grant = data.draw(st.sampled_from(self.late))
        before = self._counts()
        with contextlib.suppress(LeaseLost):
            self._operate(process, grant, how)
        assert self._counts() == before

    @rule(process=processes, query=queries, state=st.sampled_from(("answered", "failed")))
    def end_query(self, process: int, query: str, state: Any) -> None:
        self._run(process, lambda tx: move_query.end_query(tx, query, state=state))

    @rule(process=processes)
    def leave_and_return(self, process: int) -> None:
        self._run(process, leases.leave)
        self._run(process, leases.join)

    @rule(dead=processes, by=processes)
    def die(self, dead: int, by: int) -> None:
        """A process stops beating, is found dead by another, and comes back without its memory."""
        self._run(dead, lambda tx: leases.beat(tx, lease_s=-1.0))
        self._run(by, leases.expire)
        self._run(dead, lambda tx: leases.beat(tx, lease_s=3600))

    # -- what operators do ----------------------------------------------------------------------

    @rule(name=st.sampled_from(INSTANCES), profile=profiles, slots=st.integers(1, 3))
    def enter(self, name: str, profile: Profile, slots: int) -> None:
        view = self.stores[0].read(instance_views).get(name)
        if view is not None:
            # What runs stays: fewer slots or less memory than are taken are no broken law.
            slots = max(slots, view.occupied)
            if profile.kv_tokens is not None and profile.kv_tokens < view.reserved_kv_tokens:
                return
        self._enter(name, profile, slots)

    @rule(
        names=st.lists(st.sampled_from(INSTANCES), min_size=1, max_size=3, unique=True),
        state=st.sampled_from(("alive", "suspect", "draining", "dead")),
    )
    def set_states(self, names: list[str], state: Any) -> None:
        known = self.stores[0].read(instance_views)

        def change(tx: Transaction) -> None:
            for name in names:
                if name in known:
                    move_instance.set_instance_state(tx, name, state)

        self._run(0, change)

    @rule(alpha=st.sampled_from((0.0, 0.3, 1.0)), policy=st.sampled_from(("paper", "normalised")))
    def tune(self, alpha: float, policy: Any) -> None:
        self._run(
            0,
            lambda tx: set_policy(
                tx, replace(tx.settings, alpha=alpha, policy=policy), reason="a test"
            ),
        )

    # -- what holds -----------------------------------------------------------------------------

    @invariant()
    def every_law_holds(self) -> None:
        if hasattr(self, "stores"):
            store = self.stores[0]
            assert store.read(lambda c: check_laws(c, now=store.now())) == []

    @invariant()
    def each_process_knows_what_it_runs(self) -> None:
        """Nothing runs that its process was not told of (law 6)."""
        for index in PROCESSES if hasattr(self, "stores") else ():
            store = self.stores[index]
            open_ids = store.read(lambda c, store=store: open_request_states(c, store.process))
            for request_id in list(self.grants[index]):
                if request_id not in open_ids:
                    self.late.append((index, self.grants[index].pop(request_id)))

    def teardown(self) -> None:
        if not hasattr(self, "stores"):
            return
        try:
            self._work_off()
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _work_off(self) -> None:
        """Let everything that is open end; then every backlog is 0 (law 8)."""
        self._enter("m2", Profile("large", 0.1, 0.0, 0.01), 3)
        for name in INSTANCES:
            if name in self.stores[0].read(instance_views):
                self._run(
                    0, lambda tx, name=name: move_instance.set_instance_state(tx, name, "alive")
                )
        for _ in range(10_000):
            for process in PROCESSES:
                self.take_admitted(process)
            held = [(i, grant) for i in PROCESSES for grant in list(self.grants[i].values())]
            if not held:
                break
            for process, grant in held:
                self._end(process, grant, "finish")
        counts = self._counts()
        assert counts["waiting"] == counts["admitted"] == counts["running"] == 0, counts
        for view in self.stores[0].read(instance_views).values():
            assert (view.backlog_s, view.waiting, view.occupied) == (0, 0, 0)
            assert view.reserved_kv_tokens == 0
        self.every_law_holds()

    # -- the parts of it ------------------------------------------------------------------------

    def _enter(self, name: str, profile: Profile, slots: int) -> None:
        spec = InstanceSpec(name, f"http://{name}", profile, slots)
        self._run(0, lambda tx: move_instance.enter_instance(tx, spec))

    def _end(self, process: int, grant: Grant, how: str) -> None:
        self.grants[process].pop(grant.request_id, None)
        self.late.append((process, grant))
        with contextlib.suppress(LeaseLost):
            self._operate(process, grant, how)

    def _operate(self, process: int, grant: Grant, how: str) -> None:
        key = {"request_id": grant.request_id, "attempt": grant.attempt}
        outcome = Outcome({"text": "x"}, 10, 20)
        operations: dict[str, Callable[[Transaction], object]] = {
            "finish": lambda tx: move_request.finish(tx, **key, outcome=outcome),
            "fail": lambda tx: move_request.fail(tx, **key, error="broke"),
            "give back": lambda tx: move_request.give_back(tx, **key, why="hangs"),
            "cancel": lambda tx: move_request.cancel(
                tx, request_id=grant.request_id, why="not wanted"
            ),
        }
        self.stores[process].transact(operations[how])

    def _run(self, process: int, operation: Callable[[Transaction], object]) -> None:
        # A guard that says no is one of the things that may happen.
        with contextlib.suppress(HexprefectError):
            self.stores[process].transact(operation)

    def _granted(self, process: int, grants: Any) -> None:
        for grant in grants:
            before = self.grants[process].get(grant.request_id)
            if before is not None:
                self.late.append((process, before))
            self.grants[process][grant.request_id] = grant

    def _counts(self) -> dict[str, int]:
        return self.stores[0].read(request_counts)


@pytest.mark.timeout(280)
def test_every_law_holds_in_any_history(sqlite_template: Path) -> None:
    Histories.template = sqlite_template
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=int(os.environ.get("HEXPREFECT_HISTORIES", "15")),
            stateful_step_count=20,
            # A failing history is short enough to be read; shrinking it would take minutes.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
        ),
    )
