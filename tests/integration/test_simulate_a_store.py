"""`hexprefect simulate` and `tune` on what a store has recorded: its queries, and its fleet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.store import InstanceSpec, NewQuery, NewRequest, Outcome, Store
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.fleet import enter_instance


def answer(store: Store, number: int) -> None:
    """One query of two calls, the second made from the first."""
    arrived_at = store.now()
    new = NewQuery(f"q{number}", "default", "shop", slo_s=60.0, arrived_at=arrived_at)
    deadline = store.transact(lambda tx: move_query.register_query(tx, new)).deadline
    needs: tuple[str, ...] = ()
    for stage, output in (("schema_linking", 20), ("candidate_generation", 80)):
        request = NewRequest(
            f"q{number}-{stage}", new.id, stage, RequestSize(500, 10.0), deadline, needs=needs
        )
        grant = store.enqueue_submit(request).result(timeout=30).grant
        assert grant is not None
        outcome = Outcome({"text": ""}, input_tokens=500, output_tokens=output)
        store.transact(
            lambda tx, grant=grant, outcome=outcome: move_request.finish(
                tx, request_id=grant.request_id, attempt=grant.attempt, outcome=outcome
            )
        )
        needs = (request.id,)
    store.transact(lambda tx: move_query.end_query(tx, new.id, state="answered"))


@pytest.fixture
def recorded(store_url: str, open_store: Any) -> str:
    """The URL of a store with two instances and six answered queries."""
    store = open_store(store_url)
    for name, slow in (("fast", 1), ("slow", 3)):
        profile = Profile(name, 0.1, slow * 1e-3, slow * 0.01, kv_tokens=20_000)
        spec = InstanceSpec(name, f"http://{name}", profile, slots=4)
        store.transact(lambda tx, spec=spec: enter_instance(tx, spec))
    for number in range(6):
        answer(store, number)
    return store_url


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_recorded_queries_run_on_the_recorded_fleet(recorded: str) -> None:
    records = run(
        *("simulate", recorded, "--cluster", recorded, "--arrivals", "recorded"),
        *("--policy", "rr-fcfs,hexprefect", "--check-laws"),
    )
    assert [record["policy"] for record in records] == ["rr-fcfs", "hexprefect"]
    for record in records:
        assert (record["trace"], record["cluster"]) == ("store", "recorded")
        assert (record["queries"], record["requests"]) == (6, 12)


def test_recorded_queries_run_on_another_fleet(recorded: str) -> None:
    [record] = run("simulate", recorded, "--cluster", "a100:1", "--rate", "0.5x", "--policy", "llf")
    assert (record["cluster"], record["queries"]) == ("a100:1", 300)


def test_a_store_that_cannot_be_read_is_an_error_without_its_password() -> None:
    url = "postgresql+psycopg://reader:hunter2@127.0.0.1:9/nothing"
    result = CliRunner().invoke(app, ["simulate", url, "--json"])
    assert result.exit_code == 2
    assert "hexprefect store check" in result.output
    assert "hunter2" not in result.output
