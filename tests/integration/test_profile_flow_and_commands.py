"""The flow `learn-profiles`, and the commands that show, learn, pin and reset a profile."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from prefect.client.schemas.objects import State
from sqlalchemy import insert
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.commands.output import out
from hexprefect.flows import learn_profiles as flow_module
from hexprefect.scheduling import Profile
from hexprefect.store import InstanceSpec, NewQuery, Store, tables
from hexprefect.store.fleet import enter_instance
from hexprefect.store.queries import register_query

DESCRIBED = Profile("gpu", 0.2, 2e-3, 0.04)
PNG = b"\x89PNG\r\n\x1a\n"


def fill(store: Store, *, instance: str = "gpu-0", number: int = 40, slowness: float = 0.5) -> None:
    """An instance, and requests that took `slowness` times what its description says."""
    spec = InstanceSpec(name=instance, url=f"http://{instance}", profile=DESCRIBED, slots=4)
    now = store.now()
    requests, attempts = [], []
    for index in range(number):
        read, written = 200 + 137 * index % 3000, 20 + 41 * index % 300
        start = now - 3600.0 + 60.0 * index
        seconds = slowness * (0.2 + 2e-3 * read + 0.04 * written)
        request = f"{instance}-{index}"
        requests.append(
            {
                "id": request,
                "query_id": "q",
                "stage": "ask",
                "state": "finished",
                "owner": "p",
                "instance": instance,
                "input_tokens": read,
                "predicted_output_tokens": 10.0,
                "kv_tokens": read,
                "submitted_at": start,
                "ready_at": start,
                "budget_s": 1.0,
                "latest_start": start,
                "order_key": start,
                "attempt": 1,
                "actual_input_tokens": read,
                "actual_output_tokens": written,
                "cached_tokens": 0,
            }
        )
        attempts.append(
            {
                "request_id": request,
                "number": 1,
                "instance": instance,
                "owner": "p",
                "admitted_at": start,
                "started_at": start,
                "ended_at": start + seconds,
                "outcome": "finished",
            }
        )

    def write(tx: Any) -> None:
        enter_instance(tx, spec)
        register_query(tx, NewQuery("q", "default", "shop", 60.0, now))
        tx.connection.execute(insert(tables.requests), requests)
        tx.connection.execute(insert(tables.attempts).inline(), attempts)

    store.transact(write)


@pytest.fixture
def store(new_sqlite_url: str, open_store: Callable[..., Store]) -> Store:
    return open_store(new_sqlite_url)


# -- the flow --------------------------------------------------------------------------------------


@pytest.fixture
def artifacts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Artifacts are kept here instead of being sent to a Prefect server."""
    kept: dict[str, str] = {}

    async def keep(content: str, *, key: str, **_: Any) -> None:
        kept[key] = content

    monkeypatch.setattr(flow_module, "acreate_markdown_artifact", keep)
    monkeypatch.setattr(flow_module, "acreate_image_artifact", keep)
    return kept


async def run_flow(store: Store, **parameters: Any) -> tuple[State[Any], dict[str, Any]]:
    state = await flow_module.learn_profiles.fn(store_url=store.url, **parameters)
    assert state.is_completed(), state.message
    return state, dict(await state.aresult())  # type: ignore[arg-type]


async def test_the_flow_learns_each_instance_and_shows_what_it_saw(
    store: Store, artifacts: dict[str, str]
) -> None:
    fill(store, instance="gpu-0", slowness=0.5)
    fill(store, instance="gpu-1", slowness=1.0)
    fill(store, instance="gpu-2", number=5)
    state, record = await run_flow(store)
    assert "gpu-0" in str(state.message)
    assert {one["instance"]: one["entered"] for one in record["instances"]} == {
        "gpu-0": True,
        "gpu-1": False,
        "gpu-2": False,
    }
    table = artifacts["learned-profiles"].splitlines()
    assert len(table) == 5
    assert "| 100.0%, 100.0% | 0.0%, 0.0% |" in table[2]
    assert "5 requests have finished" in table[4]
    image = artifacts["predicted-against-seen"].removeprefix("data:image/png;base64,")
    assert base64.b64decode(image).startswith(PNG)


async def test_the_flow_says_when_there_is_nothing_to_learn(
    store: Store, artifacts: dict[str, str]
) -> None:
    fill(store, slowness=1.0)
    state, _ = await run_flow(store)
    assert state.name == "NothingToLearn"
    state, record = await run_flow(store, least_requests=41)
    assert state.name == "NothingToLearn"
    assert record["instances"][0]["fitted"] is None


async def test_a_dry_run_of_the_flow_changes_nothing(
    store: Store, artifacts: dict[str, str]
) -> None:
    fill(store)
    _, record = await run_flow(store, dry_run=True)
    assert record["instances"][0]["outcome"] == "would be learned"
    assert command(store, "profile", "gpu-0")["learned"] is False


async def test_the_flow_fails_with_the_remedy_where_there_is_no_store(tmp_path: Any) -> None:
    state = await flow_module.learn_profiles.fn(store_url=f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert state.is_failed()
    assert "hexprefect store upgrade" in str(state.message)


# -- the commands ----------------------------------------------------------------------------------


def shown(store: Store, *arguments: str) -> str:
    """What `hexprefect instances …` prints."""
    ran = CliRunner().invoke(app, ["instances", *arguments, "--store", store.url])
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def command(store: Store, *arguments: str) -> dict[str, Any]:
    """The same with `--json`."""
    printed = json.loads(shown(store, *arguments, "--json"))
    assert isinstance(printed, dict)
    return printed


def test_the_profile_is_shown_with_its_error_and_its_history(store: Store) -> None:
    fill(store)
    before = command(store, "profile", "gpu-0")
    assert (before["learned"], before["requests"], before["history"]) == (False, 40, [])
    assert before["error"]["median"] == pytest.approx(1.0)
    [learned] = command(store, "learn", "gpu-0")["instances"]
    assert (learned["entered"], learned["sample"], learned["checked"]) == (True, 27, 13)
    after = command(store, "profile", "gpu-0")
    assert after["error"]["median"] < 0.01
    assert after["described"]["output_s_per_token"] == DESCRIBED.output_s_per_token
    assert after["current"]["output_s_per_token"] == pytest.approx(0.02, rel=0.05)
    assert [row["change"] for row in after["history"]] == ["learned"]


def test_people_are_shown_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 200)
    fill(store)
    assert "It has not changed yet." in shown(store, "profile", "gpu-0")
    assert "would be learned" in shown(store, "learn", "--dry-run")
    assert "learned" in shown(store, "learn")
    text = shown(store, "profile", "gpu-0")
    assert "as described" in text
    assert "as learned" in text
    assert "40 finished requests" in text


def test_an_operator_pins_releases_and_resets(store: Store) -> None:
    fill(store)
    assert command(store, "profile", "gpu-0", "--pin")["pinned"]
    [kept] = command(store, "learn")["instances"]
    assert "pinned by an operator" in kept["outcome"]
    assert not command(store, "profile", "gpu-0", "--unpin")["pinned"]
    assert command(store, "learn")["instances"][0]["entered"]
    reset = command(store, "profile", "gpu-0", "--reset")
    assert (reset["learned"], reset["requests"]) == (False, 0)
    assert [row["change"] for row in reset["history"]] == [
        "reset",
        "learned",
        "released",
        "pinned",
    ]


def test_an_instance_added_by_hand_may_keep_its_described_profile(store: Store) -> None:
    command(store, "add", "gpu-7", "--url", "http://gpu-7:8000", "--no-learn-profile")
    assert command(store, "profile", "gpu-7")["learns"] is False
    command(store, "add", "gpu-7", "--url", "http://gpu-7:8000")
    assert command(store, "profile", "gpu-7")["learns"] is True


def test_what_does_not_exist_is_the_callers_mistake(store: Store) -> None:
    ran = CliRunner().invoke(app, ["instances", "profile", "gpu-9", "--store", store.url])
    assert ran.exit_code == 2
    assert "gpu-9" in ran.output
    ran = CliRunner().invoke(app, ["instances", "learn", "--store", store.url])
    assert ran.exit_code == 2
    assert "no instance" in ran.output
