"""`tune-alpha`: the store's last window is replayed, the best α is what dispatch uses next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from prefect.testing.utilities import prefect_test_harness
from sqlalchemy import insert, select, update

from hexprefect.flows import tune_alpha as flow_module
from hexprefect.scheduling import Profile
from hexprefect.simulator import Generator
from hexprefect.simulator.policies import named_policy
from hexprefect.simulator.recorded import Window
from hexprefect.store import tables
from hexprefect.store.alpha import set_policy
from hexprefect.store.load import profile_columns
from hexprefect.store.store import Store
from hexprefect.store.upgrade import upgrade
from hexprefect.store.values import DispatchSettings


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    return url


@pytest.fixture(scope="module")
def prefect_server() -> Iterator[None]:
    """A Prefect server of our own, for the flow that runs another."""
    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(autouse=True)
def artifacts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Artifacts are kept here instead of being sent to a Prefect server."""
    kept: list[str] = []

    async def keep(markdown: str, **_: Any) -> None:
        kept.append(markdown)

    monkeypatch.setattr(flow_module, "acreate_markdown_artifact", keep)
    return kept


def fill(
    url: str,
    *,
    queries: int = 12,
    slowness: tuple[float, ...] = (1.0, 4.0),
    ago_s: float = 600.0,
    latency_s: float = 30.0,
) -> None:
    """Enter instances of the given slowness, unless there are any, and a recorded run of generated
    queries that began so long ago."""
    store = Store(url)
    now = time.time()
    instances = [
        {
            "name": f"gpu-{number}",
            "url": "http://127.0.0.1:1",
            "profile": profile_columns(Profile("p", 0.01, slow * 3e-4, slow * 0.02)),
            "slots": 64,
            "changed_at": now,
        }
        for number, slow in enumerate(slowness)
    ]
    query_rows, request_rows = [], []
    for number, query in enumerate(Generator(family="spider", seed=4).some(queries)):
        arrived_at = now - ago_s + 8.0 * number
        ended_at = arrived_at + latency_s + number
        query_rows.append(
            {
                "id": f"q{ago_s:g}-{number}",
                "tenant": "default",
                "owner": "p",
                "slo_s": 120.0,
                "arrived_at": arrived_at,
                "deadline": arrived_at + 120.0,
                "state": "answered",
                "ended_at": ended_at,
            }
        )
        for index, call in enumerate(query.calls):
            request_rows.append(
                {
                    "id": f"q{ago_s:g}-{number}-{index}",
                    "query_id": f"q{ago_s:g}-{number}",
                    "stage": call.stage,
                    "needs": [f"q{ago_s:g}-{number}-{need}" for need in call.needs],
                    "state": "finished",
                    "owner": "p",
                    "instance": "gpu-0",
                    "input_tokens": call.input_tokens,
                    "predicted_output_tokens": 50.0,
                    "kv_tokens": call.input_tokens + 50,
                    "prefix": [list(segment) for segment in call.prefix],
                    "submitted_at": arrived_at + index,
                    "ready_at": arrived_at + index,
                    "budget_s": 1.0,
                    "latest_start": arrived_at,
                    "order_key": arrived_at,
                    "actual_input_tokens": call.input_tokens,
                    "actual_output_tokens": call.output_tokens,
                }
            )

    def write(tx: Any) -> None:
        if not tx.instances:
            tx.connection.execute(insert(tables.instances), instances)
        tx.connection.execute(insert(tables.queries), query_rows)
        tx.connection.execute(insert(tables.requests), request_rows)

    store.transact(write)
    store.close()


def alpha_rows(url: str) -> list[Any]:
    store = Store(url)
    rows = store.read(lambda c: c.execute(select(tables.alpha_history)).mappings().all())
    store.close()
    return list(rows)


async def result_of(state: State[dict[str, Any]]) -> dict[str, Any]:
    value: Any = await state.aresult()
    return dict(value)


async def test_the_choice_is_written_with_its_evidence_and_its_curve(
    store_url: str, artifacts: list[str]
) -> None:
    fill(store_url)
    state = await flow_module.tune_alpha.fn(store_url=store_url)
    result = await result_of(state)
    assert result["tuned"]
    [row] = alpha_rows(store_url)
    assert row["alpha"] == result["choice"]["alpha"]
    assert "12 queries" in row["reason"]
    assert row["evidence"]["choice"]["p95_s"] <= row["evidence"]["round_robin"]["p95_s"]
    assert "← chosen" in artifacts[0]
    assert artifacts[0].count("\n|") >= 21


async def test_the_whole_policy_is_tuned_and_written_as_the_store_can_follow_it(
    store_url: str, artifacts: list[str]
) -> None:
    fill(store_url)
    state = await flow_module.tune_alpha.fn(
        store_url=store_url, objective="attainment", jointly=True
    )
    result = await result_of(state)
    [row] = alpha_rows(store_url)
    assert len({point["slowdown"] for point in result["grid"]}) > 3
    assert {point["order"] for point in result["grid"]} - {"arrival"} == {
        "laxity", "urgency", "deadline"
    }  # fmt: skip
    for column, name in (
        ("queue_order", "order"), ("slowdown", "slowdown"), ("late_penalty", "late_penalty"),
        ("stretch", "stretch"), ("alpha", "alpha"),
    ):  # fmt: skip
        assert row[column] == result["choice"][name]


def test_a_policy_and_the_settings_of_a_store_say_the_same() -> None:
    settings = DispatchSettings(
        alpha=0.3, order="deadline", slowdown=None, late_penalty=4.0, stretch=1.5
    )
    policy = flow_module.policy_of(settings)
    assert flow_module.settings_of(policy, DispatchSettings()) == settings
    assert flow_module.policy_of(DispatchSettings()) == named_policy("hexprefect")


def set_present(url: str, settings: DispatchSettings) -> None:
    store = Store(url)
    store.transact(lambda tx: set_policy(tx, settings, reason="by hand"))
    store.close()


# Two requests at once in each of two equal engines are far too few, whatever α is.
STARVED = DispatchSettings(alpha=1.0, slowdown=1.0)


async def test_where_round_robin_is_best_the_best_alpha_is_written_and_the_difference_said(
    store_url: str, artifacts: list[str]
) -> None:
    fill(store_url, slowness=(1.0, 1.0), queries=24)
    set_present(store_url, STARVED)
    state = await flow_module.tune_alpha.fn(store_url=store_url)
    result = await result_of(state)
    assert result["round_robin_wins"]
    assert result["tuned"]
    assert result["choice"]["alpha"] == result["best_tuned"]["alpha"]
    assert result["round_robin"]["p95_s"] < result["choice"]["p95_s"] < result["present"]["p95_s"]
    with_alpha = [point["p95_s"] for point in result["grid"] if point["alpha"] is not None]
    assert result["choice"]["p95_s"] == min(with_alpha)
    _, row = alpha_rows(store_url)
    assert row["alpha"] == result["choice"]["alpha"]
    assert "round-robin" in row["reason"]
    for said in (str(state.message), artifacts[0]):
        assert "Round-robin would have been better" in said
        assert f"P95 {result['round_robin']['p95_s']:.2f} s" in said
        assert f"P95 {result['choice']['p95_s']:.2f} s" in said
    [chosen] = [line for line in artifacts[0].splitlines() if "← chosen" in line]
    assert chosen.startswith(f"| {row['alpha']:g} |")


async def test_nothing_is_written_where_the_present_policy_is_the_best(
    store_url: str, artifacts: list[str]
) -> None:
    fill(store_url)
    first = await result_of(await flow_module.tune_alpha.fn(store_url=store_url))
    state = await flow_module.tune_alpha.fn(store_url=store_url)
    while (await result_of(state))["tuned"]:  # finer around the choice, once or twice
        state = await flow_module.tune_alpha.fn(store_url=store_url)
    assert state.name == "NothingToTune"
    assert "present policy" in str(state.message)
    assert (await result_of(state))["present"]["p95_s"] <= first["choice"]["p95_s"]
    rows = alpha_rows(store_url)
    await flow_module.tune_alpha.fn(store_url=store_url)
    assert alpha_rows(store_url) == rows
    assert "← chosen, present" in artifacts[-1]


async def test_the_curve_of_a_joint_tuning_tells_its_points_apart(
    store_url: str, artifacts: list[str]
) -> None:
    fill(store_url)
    state = await flow_module.tune_alpha.fn(store_url=store_url, jointly=True, dry_run=True)
    grid = (await result_of(state))["grid"]
    rows = artifacts[0].splitlines()[4:]
    assert len(rows) == len(grid)
    settings = {tuple(cell.strip() for cell in row.split("|")[1:7:1]) for row in rows}
    assert len({(alpha, *rest) for alpha, _, *rest in settings}) == len(grid)
    assert "| order | slowdown | late penalty | stretch |" in artifacts[0]


async def test_the_newest_queries_of_the_window_are_replayed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store_url, ago_s=7200.0, queries=8)
    fill(store_url, ago_s=600.0, queries=5)
    monkeypatch.setattr(flow_module, "MOST_QUERIES", 5)
    result = await result_of(await flow_module.tune_alpha.fn(store_url=store_url, dry_run=True))
    assert result["queries"] == 5
    # One each 8 s; with any of the older ones the recording would last nearly two hours.
    assert result["round_robin"]["throughput_qps"] > 5 / 600


async def test_queries_that_came_at_one_moment_are_replayed_so(store_url: str) -> None:
    fill(store_url, queries=3)
    store = Store(store_url)
    store.transact(lambda tx: tx.connection.execute(update(tables.queries).values(
        arrived_at=time.time() - 100.0)))  # fmt: skip
    store.close()
    result = await result_of(await flow_module.tune_alpha.fn(store_url=store_url, dry_run=True))
    assert result["queries"] == 3


async def test_a_window_that_no_instance_can_hold_fails_with_the_remedy(store_url: str) -> None:
    fill(store_url)
    store = Store(store_url)
    tiny = profile_columns(Profile("p", 0.01, 3e-4, 0.02, kv_tokens=10))
    store.transact(lambda tx: tx.connection.execute(update(tables.instances).values(profile=tiny)))
    store.close()
    state = await flow_module.tune_alpha.fn(store_url=store_url)
    assert state.is_failed()
    assert "tokens" in str(state.message)


async def test_a_dry_run_writes_nothing(store_url: str) -> None:
    fill(store_url)
    state = await flow_module.tune_alpha.fn(store_url=store_url, dry_run=True)
    assert not (await result_of(state))["tuned"]
    assert alpha_rows(store_url) == []


async def test_an_empty_window_is_said_and_not_an_error(store_url: str) -> None:
    state = await flow_module.tune_alpha.fn(store_url=store_url)
    assert state.name == "NothingToTune"
    assert "at least 2" in str(state.message)
    assert alpha_rows(store_url) == []


async def test_without_a_store_it_fails_with_the_remedy(tmp_path: Path) -> None:
    state = await flow_module.tune_alpha.fn(store_url=f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert state.is_failed()
    assert "hexprefect store upgrade" in str(state.message)


def test_the_monitor_asks_for_tuning_only_when_the_p95_has_worsened() -> None:
    def window(seconds: float) -> Window:
        return Window((), (1.0,) * 18 + (seconds,) * 2, 1.0)

    assert flow_module.worsened(window(10.0), window(13.0), worse_by=0.2)
    assert not flow_module.worsened(window(10.0), window(11.0), worse_by=0.2)
    assert not flow_module.worsened(window(10.0), window(5.0), worse_by=0.2)


HOUR = 3600.0


async def watched(url: str) -> State[dict[str, Any]]:
    # Through the engine: it runs the tuning as a flow of its own.
    state: Any = await flow_module.watch_alpha(store_url=url, return_state=True)
    return state


async def test_a_worse_hour_is_answered_with_a_tuning_on_the_newest_queries(
    store_url: str, monkeypatch: pytest.MonkeyPatch, prefect_server: None
) -> None:
    fill(store_url, ago_s=1.5 * HOUR, latency_s=30.0, queries=9)
    fill(store_url, ago_s=0.5 * HOUR, latency_s=90.0, queries=7)
    monkeypatch.setattr(flow_module, "MOST_QUERIES", 7)
    state = await watched(store_url)
    result = await result_of(state)
    assert "worsened" in str(state.message)
    assert result["queries"] == 7
    assert result["round_robin"]["throughput_qps"] > 7 / HOUR
    assert len(alpha_rows(store_url)) == int(result["tuned"])


async def test_an_hour_that_is_no_worse_leaves_everything(
    store_url: str, prefect_server: None
) -> None:
    fill(store_url, ago_s=1.5 * HOUR, latency_s=90.0)
    fill(store_url, ago_s=0.5 * HOUR, latency_s=30.0)
    state = await watched(store_url)
    assert str(state.message) == "The P95 has not worsened."
    assert not (await result_of(state))["tuned"]
    assert alpha_rows(store_url) == []


async def test_without_an_hour_before_there_is_nothing_to_compare(
    store_url: str, prefect_server: None
) -> None:
    fill(store_url, ago_s=0.5 * HOUR)
    fill(store_url, ago_s=5.0 * HOUR)
    state = await watched(store_url)
    assert state.name == "NothingToCompare"
    assert alpha_rows(store_url) == []


def test_each_of_two_windows_holds_the_queries_that_came_in_it(store_url: str) -> None:
    now = time.time()
    fill(store_url, ago_s=1.5 * HOUR, latency_s=90.0, queries=9)
    fill(store_url, ago_s=0.5 * HOUR, latency_s=30.0, queries=7)
    store = Store(store_url)
    before, after = flow_module._two_windows(store, now, HOUR)
    store.close()
    assert (len(before.queries), len(after.queries)) == (9, 7)
    assert min(before.latency_s) == pytest.approx(90.0)
    assert max(after.latency_s) == pytest.approx(36.0)
    assert before.rate == pytest.approx(1 / 8.0, rel=1e-3)
    assert after.rate == pytest.approx(1 / 8.0, rel=1e-3)
