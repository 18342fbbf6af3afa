"""`hexprefect ask` on a Prefect server when no query comes of it: refused there, or here."""

from __future__ import annotations

import json
import uuid
from typing import Any

import prefect.deployments
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.states import Failed
from typer.testing import CliRunner

from hexprefect.cli import app
from hexprefect.commands.evaluate_stack import Stack
from hexprefect.errors import CallerMistake
from hexprefect.evaluation.questions import GoldQuestion


def test_the_answer_says_what_the_flow_run_said(
    new_sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ended(*_: Any, **__: Any) -> FlowRun:
        refused = Failed(message="The tenant 'sales' is not known. Use one of: default.")
        return FlowRun(flow_id=uuid.uuid4(), state=refused)

    monkeypatch.setattr(prefect.deployments, "run_deployment", ended)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    said = CliRunner().invoke(
        app, ["ask", "How many?", "-d", "demo", "--store", new_sqlite_url, "--json"]
    )
    record = json.loads(said.stdout)
    assert said.exit_code == 3
    assert record["state"] == "failed"
    assert "Use one of: default" in record["error"]


URLS = ["postgresql://u:hunter2@127.0.0.1:9/d", "mysql://u@127.0.0.1:9/d?password=hunter2"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a Prefect server was told."""
    told: list[Any] = []

    async def run(*_: Any, **given: Any) -> FlowRun:
        told.append(given)
        return FlowRun(flow_id=uuid.uuid4(), state=Failed(message="It came too far."))

    monkeypatch.setattr(prefect.deployments, "run_deployment", run)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    return told


@pytest.mark.parametrize("url", URLS)
def test_a_url_with_a_secret_is_refused_before_prefect_is_told(
    new_sqlite_url: str, sent: list[Any], url: str
) -> None:
    said = CliRunner().invoke(
        app, ["ask", "How many?", "-d", url, "--store", new_sqlite_url, "--json"]
    )
    record = json.loads(said.stdout)
    assert said.exit_code == 2
    assert "Text2SQLDatabase" in record["error"]
    assert "env:" in record["error"]
    assert "hunter2" not in said.stdout
    assert sent == []


@pytest.mark.parametrize("url", URLS)
async def test_an_evaluation_sends_no_secret_either(
    new_sqlite_url: str, sent: list[Any], url: str
) -> None:
    stack = Stack(store_url=new_sqlite_url, tenant="default", slo_s=None)
    with pytest.raises(CallerMistake, match="Text2SQLDatabase"):
        await stack.answer(GoldQuestion("1", 0, "How many?", ("SELECT 1",), "d"), url)
    assert sent == []
