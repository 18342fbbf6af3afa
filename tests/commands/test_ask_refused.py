"""`hexprefect ask` on a Prefect server, when the flow run ends before it has become a query."""

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
