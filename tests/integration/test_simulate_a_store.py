"""`hexprefect simulate` and `tune` on what a store has recorded: its queries, and its fleet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.scheduling import Profile, RequestSize
from hexprefect.simulator.command_options import cluster_of
from hexprefect.simulator.engine_values import EngineOptions
from hexprefect.simulator.recorded import from_store, read_window
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


def test_options_of_the_engines_hold_for_the_recorded_fleet_too(recorded: str) -> None:
    def p95(*options: str) -> float:
        [record] = run(
            *("simulate", recorded, "--cluster", recorded, "--rate", "4", "--policy", "hexgen"),
            *("--queries", "40", *options),
        )
        return float(record["p95_s"])

    base = p95()
    assert p95("--slots", "64") == base  # each instance has four
    assert p95("--slots", "1") > base
    assert p95("--kv-tokens", "600") > base
    assert p95("--prefill", "first") != base
    assert p95("--no-prefix-cache") == base  # nothing recorded shares a prefix


def test_prefix_caching_can_be_switched_off_on_a_recorded_fleet(recorded: str) -> None:
    options = {"model": None, "profile_file": None, "prefill": "first", "slots": 2}
    cluster = cluster_of(recorded, **options, no_prefix_cache=True, kv_tokens=700)
    for instance in cluster.instances:
        assert instance.options == EngineOptions(prefill="first", slots=2, prefix_cache=False)
        assert instance.profile.kv_tokens == 700


def test_a_recording_keeps_its_own_rate(recorded: str) -> None:
    [record] = run(
        *("simulate", recorded, "--cluster", recorded, "--arrivals", "recorded"),
        *("--policy", "hexgen"),
    )
    queries = from_store(recorded, read_window).queries
    moments = [query.arrived_at for query in queries if query.arrived_at is not None]
    assert record["rate"] == pytest.approx(5 / (moments[-1] - moments[0]))


def test_a_store_that_cannot_be_read_is_an_error_without_its_password() -> None:
    url = "postgresql+psycopg://reader:hunter2@127.0.0.1:9/nothing"
    result = CliRunner().invoke(app, ["simulate", url, "--json"])
    assert result.exit_code == 2
    assert "hexprefect store check" in result.output
    assert "hunter2" not in result.output


def test_what_dispatch_weighed_is_shown_beside_each_instance(recorded: str) -> None:
    shown = CliRunner().invoke(
        app, ["queries", "show", "q0", "--store", recorded], env={"COLUMNS": "200"}
    )
    assert shown.exit_code == 0
    assert "weighed" in shown.output
    assert "t_comp" not in shown.output
    [decision, *_] = run("queries", "show", "q0", "--store", recorded)["decisions"]
    for _, weighed_s, _, _ in decision["record"]["scores"]:
        assert f"{weighed_s:.3f} s" in shown.output
