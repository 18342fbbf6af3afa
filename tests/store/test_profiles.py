"""Profiles are learned from what finished, survive what re-enters the fleet, and obey operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert

from hexprefect.scheduling import Profile
from hexprefect.scheduling.profile_fitting import finished_requests, fit_profile
from hexprefect.store import InstanceSpec, Store, UnknownInstance, tables
from hexprefect.store import fleet as move_instance
from hexprefect.store.learning import learn, learn_all, observe
from hexprefect.store.profiles import forget_learned, pin_profile, profile_history, runs_on

DESCRIBED = Profile("gpu", 0.2, 2e-3, 0.04, batch_growth=0.02, kv_tokens=50_000)
TRUE = Profile("gpu", 0.1, 1e-3, 0.02, batch_growth=0.02, kv_tokens=50_000)

_numbers = itertools.count()


class Recorded:
    """A store in which requests have finished that took as long as one likes."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.store: Store = process.store
        self.query = process.query()
        self.spec: Any = None
        process.lawful = False  # rows that no transition wrote

    def instance(self, name: str = "m", **fields: Any) -> InstanceSpec:
        spec: InstanceSpec = self.process.instance(name, DESCRIBED, slots=4, **fields)
        return spec

    def finished(
        self, number: int, *, true: Profile = TRUE, instance: str = "m", ago_s: float = 3600.0
    ) -> None:
        """So many requests, one after the other, the last of them ended `ago_s` seconds ago."""
        shapes = [(200 + 137 * n % 3000, 20 + 41 * n % 300) for n in range(number)]
        at = self.store.now() - ago_s
        for read, written in reversed(shapes):
            seconds = (
                true.fixed_s + true.input_s_per_token * read + true.output_s_per_token * written
            )
            self.ran(at - seconds, at, read + 50, written, instance=instance, cached=50)
            at -= seconds + 1.0

    def ran(
        self,
        start: float,
        end: float,
        read: int,
        written: int | None,
        *,
        instance: str = "m",
        cached: int = 0,
        outcome: str = "finished",
    ) -> str:
        id = f"recorded-{next(_numbers)}"
        state = {"moved": "waiting", "lost": "failed"}.get(outcome, outcome)
        request = {
            "id": id,
            "query_id": self.query.id,
            "stage": "ask",
            "state": state,
            "owner": self.process.id,
            "instance": None if outcome == "moved" else instance,
            "input_tokens": read,
            "predicted_output_tokens": 10.0,
            "kv_tokens": read + 10,
            "submitted_at": start,
            "ready_at": start,
            "budget_s": 1.0,
            "latest_start": start,
            "order_key": start,
            "attempt": 1,
            "started_at": start,
            "ended_at": None if state == "waiting" else end,
            "actual_input_tokens": read if written is not None else None,
            "actual_output_tokens": written,
            "cached_tokens": cached,
        }
        attempt = {
            "request_id": id,
            "number": 1,
            "instance": instance,
            "owner": self.process.id,
            "admitted_at": start,
            "started_at": start,
            "ended_at": end,
            "outcome": outcome,
        }

        def write(tx: Any) -> None:
            tx.connection.execute(insert(tables.requests), [request])
            tx.connection.execute(insert(tables.attempts).inline(), [attempt])

        self.store.transact(write)
        return id

    def profile(self, name: str = "m") -> Profile:
        profile: Profile = self.process.view(name).profile
        return profile

    def history(self, name: str = "m") -> list[str]:
        rows = self.store.read(lambda connection: profile_history(connection, name))
        return [row["change"] for row in rows]


@pytest.fixture
def recorded(process: Any) -> Recorded:
    return Recorded(process)


@pytest.fixture
def learnt(recorded: Recorded) -> Recorded:
    """An instance whose description was wrong by two, and which has learned better."""
    recorded.spec = recorded.instance()
    recorded.finished(40)
    assert learn(recorded.store, "m").entered
    return recorded


# -- what is learned -------------------------------------------------------------------------------


def test_a_new_instance_has_the_profile_of_its_hardware(recorded: Recorded) -> None:
    recorded.instance()
    assert recorded.profile() == DESCRIBED
    learning = learn(recorded.store, "m")
    assert not learning.entered
    assert "0 requests have finished" in learning.outcome
    assert (recorded.profile(), recorded.history()) == (DESCRIBED, [])


def test_what_finished_corrects_it_and_dispatch_uses_that(
    learnt: Recorded, new_process: Callable[..., Any]
) -> None:
    learned = learnt.profile()
    assert learned.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.05)
    assert learned.input_s_per_token == pytest.approx(TRUE.input_s_per_token, rel=0.05)
    assert learned.output_s_per_token == pytest.approx(TRUE.output_s_per_token, rel=0.05)
    assert (learned.name, learned.kv_tokens) == (DESCRIBED.name, DESCRIBED.kv_tokens)
    other = new_process()
    query = other.query()
    submitted = other.submit(query, input_tokens=1000, output_tokens=100.0)
    assert submitted.grant.completion_s == pytest.approx(0.1 + 1.0 + 2.0, rel=0.05)
    other.finish(submitted)


def test_its_history_says_from_what_and_how_much_better(learnt: Recorded) -> None:
    [row] = learnt.store.read(lambda connection: profile_history(connection, "m"))
    assert (row["change"], row["sample"], row["rejected"]) == ("learned", 27, 0)
    assert row["median_error_before"] == pytest.approx(1.0, rel=0.05)
    assert row["median_error_after"] < 0.01
    assert row["output_s_per_token"] == learnt.profile().output_s_per_token
    again = learn(learnt.store, "m")
    assert not again.entered
    assert "predicts as well" in again.outcome
    assert learnt.history() == ["learned"]


def test_a_dry_run_writes_nothing(recorded: Recorded) -> None:
    recorded.instance()
    recorded.finished(40)
    assert learn(recorded.store, "m", dry_run=True).outcome == "would be learned"
    assert (recorded.profile(), recorded.history()) == (DESCRIBED, [])


def test_only_the_window_counts(recorded: Recorded) -> None:
    recorded.instance()
    recorded.finished(40, ago_s=3600.0)
    assert len(observe(recorded.store, "m", window_s=4 * 3600.0).requests) == 40
    assert observe(recorded.store, "m", window_s=60.0).requests == ()


def test_each_instance_learns_from_its_own_requests(recorded: Recorded) -> None:
    for name in ("m", "n"):
        recorded.instance(name)
    recorded.finished(40, instance="m")
    recorded.finished(40, instance="n", true=DESCRIBED)
    learnings = {one.observed.state.instance: one for one in learn_all(recorded.store)}
    assert {name: one.entered for name, one in learnings.items()} == {"m": True, "n": False}
    assert recorded.profile("n") == DESCRIBED


# -- what ran beside -------------------------------------------------------------------------------


def test_whatever_was_on_the_instance_was_beside_it(recorded: Recorded) -> None:
    recorded.instance()
    recorded.instance("n")
    recorded.ran(10.0, 20.0, 100, 5)
    recorded.ran(12.0, 14.0, 200, None, outcome="lost")
    recorded.ran(13.0, 15.0, 300, None, outcome="moved")
    recorded.ran(11.0, 19.0, 400, 5, instance="n")
    recorded.ran(1.0, 2.0, 500, None, outcome="failed")
    [request] = finished_requests(recorded.store.read(lambda c: runs_on(c, "m")))
    assert request.others == pytest.approx(0.4)
    assert (request.prompts_beside, request.tokens_beside) == (2, 500)


def test_what_still_runs_was_beside_it_too(recorded: Recorded) -> None:
    recorded.instance()
    now = recorded.store.now()
    running = recorded.process.submit(recorded.query, input_tokens=70)
    recorded.ran(now - 5.0, recorded.store.now() + 5.0, 100, 5)
    [request] = finished_requests(recorded.store.read(lambda c: runs_on(c, "m")))
    assert (request.prompts_beside, request.tokens_beside) == (1, 70)
    recorded.process.finish(running)


def test_the_newest_requests_are_learned_from(recorded: Recorded) -> None:
    recorded.instance()
    for at in range(10):
        recorded.ran(100.0 + at, 100.5 + at, 10 + at, 5)
    runs = recorded.store.read(lambda c: runs_on(c, "m", most=3))
    assert [run.uncached_tokens for run in runs] == [17, 18, 19]


def test_a_request_without_known_lengths_teaches_nothing(recorded: Recorded) -> None:
    recorded.instance()
    recorded.ran(10.0, 20.0, 100, None)
    assert finished_requests(recorded.store.read(lambda c: runs_on(c, "m"))) == []


# -- what re-enters the fleet ----------------------------------------------------------------------


def test_entering_the_same_description_again_keeps_what_was_learned(learnt: Recorded) -> None:
    learned = learnt.profile()
    spec = learnt.spec
    more_memory = replace(spec, profile=replace(DESCRIBED, kv_tokens=90_000))
    for again in (spec, replace(spec, url="http://elsewhere", slots=8), more_memory, spec):
        learnt.store.transact(lambda tx, again=again: move_instance.enter_instance(tx, again))
        assert learnt.profile() == replace(learned, kv_tokens=again.profile.kv_tokens)
    learnt.store.transact(lambda tx: move_instance.synchronise(tx, [spec], pool=""))
    assert learnt.profile() == learned
    assert learnt.process.view("m").spec.profile == DESCRIBED


@pytest.mark.parametrize(
    "changed",
    [{"profile": replace(DESCRIBED, name="h100")}, {"model": "another"}, {"learn_profile": False}],
    ids=lambda changed: next(iter(changed)),
)
def test_another_engine_starts_from_its_description(
    learnt: Recorded, changed: dict[str, Any]
) -> None:
    spec = replace(learnt.spec, **changed)
    learnt.store.transact(lambda tx: move_instance.enter_instance(tx, spec))
    assert learnt.profile() == spec.profile
    assert learnt.history() == ["reset", "learned"]
    assert observe(learnt.store, "m").requests == ()


# -- what operators say ----------------------------------------------------------------------------


def test_an_instance_that_is_not_to_learn_does_not(recorded: Recorded) -> None:
    recorded.instance(learn_profile=False)
    recorded.finished(40)
    learning = learn(recorded.store, "m")
    assert not learning.entered
    assert "description says not to learn" in learning.outcome
    assert recorded.profile() == DESCRIBED


def test_a_pinned_profile_stays_until_it_is_released(recorded: Recorded) -> None:
    recorded.instance()
    recorded.finished(40)
    recorded.store.transact(lambda tx: pin_profile(tx, "m", pinned=True))
    recorded.store.transact(lambda tx: pin_profile(tx, "m", pinned=True))
    assert "pinned by an operator" in learn(recorded.store, "m").outcome
    assert recorded.profile() == DESCRIBED
    recorded.store.transact(lambda tx: pin_profile(tx, "m", pinned=False))
    assert learn(recorded.store, "m").entered
    assert recorded.history() == ["learned", "released", "pinned"]


def test_a_pin_holds_what_was_learned_when_pools_are_read_again(learnt: Recorded) -> None:
    learned = learnt.profile()
    learnt.store.transact(lambda tx: pin_profile(tx, "m", pinned=True))
    spec = replace(learnt.spec, slots=2)
    learnt.store.transact(lambda tx: move_instance.enter_instance(tx, spec))
    view = learnt.process.view("m")
    assert (view.profile, view.profile_pinned, view.profile_learned) == (learned, True, True)


def test_a_pin_set_while_the_fit_was_made_is_obeyed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.instance()
    recorded.finished(40)

    def fit_and_be_pinned(*arguments: Any) -> Any:
        recorded.store.transact(lambda tx: pin_profile(tx, "m", pinned=True))
        return fit_profile(*arguments)

    monkeypatch.setattr("hexprefect.store.learning.fit_profile", fit_and_be_pinned)
    learned = learn(recorded.store, "m")
    assert (learned.entered, learned.outcome) == (False, "pinned meanwhile")
    assert recorded.profile() == DESCRIBED


def test_a_reset_starts_over_from_what_starts_then(learnt: Recorded) -> None:
    learnt.store.transact(lambda tx: forget_learned(tx, "m"))
    assert learnt.profile() == DESCRIBED
    assert observe(learnt.store, "m").requests == ()
    assert learnt.history() == ["reset", "learned"]


def test_an_unknown_instance_is_named(recorded: Recorded) -> None:
    recorded.instance()
    for attempted in (
        lambda: learn(recorded.store, "x"),
        lambda: recorded.store.transact(lambda tx: pin_profile(tx, "x", pinned=True)),
        lambda: recorded.store.transact(lambda tx: forget_learned(tx, "x")),
    ):
        with pytest.raises(UnknownInstance, match=r"No instance 'x'.*Known: m"):
            attempted()


def test_a_removed_instance_takes_its_history_along(recorded: Recorded) -> None:
    recorded.instance()
    recorded.store.transact(lambda tx: pin_profile(tx, "m", pinned=True))
    assert recorded.store.transact(lambda tx: move_instance.remove_instance(tx, "m"))
    assert recorded.history() == []
