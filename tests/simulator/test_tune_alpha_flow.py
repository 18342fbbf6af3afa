"""`tune-alpha`: the store's last window is replayed, the best α is what dispatch uses next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from sqlalchemy import insert, select

from hexprefect.flows import tune_alpha as flow_module
from hexprefect.scheduling import Profile
from hexprefect.simulator import Generator
from hexprefect.simulator.policies import named_policy
from hexprefect.simulator.recorded import Window
from hexprefect.store import tables
from hexprefect.store.load import profile_columns
from hexprefect.store.store import Store
from hexprefect.store.upgrade import upgrade
from hexprefect.store.values import DispatchSettings


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    return url


@pytest.fixture(autouse=True)
def artifacts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Artifacts are kept here instead of being sent to a Prefect server."""
    kept: list[str] = []

    async def keep(markdown: str, **_: Any) -> None:
        kept.append(markdown)

    monkeypatch.setattr(flow_module, "acreate_markdown_artifact", keep)
    return kept


def fill(url: str, *, queries: int = 12, slowness: tuple[float, ...] = (1.0, 4.0)) -> None:
    """Enter instances of the given slowness, and a recorded run of generated queries."""
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
        arrived_at = now - 600 + 8.0 * number
        ended_at = arrived_at + 30.0 + number
        query_rows.append(
            {
                "id": f"q{number}",
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
                    "id": f"q{number}-{index}",
                    "query_id": f"q{number}",
                    "stage": call.stage,
                    "needs": [f"q{number}-{need}" for need in call.needs],
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
