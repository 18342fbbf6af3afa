"""The nightly report as Prefect's own schedule runs it: with a broken item and a slow database."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleUpdate, DeploymentUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import CronSchedule

from hexprefect.reports.archive import Archive
from tests.integration.test_deployments import artifacts_of, running_stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS_FOR_EVER = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 1000000000000) "
    "SELECT COUNT(*) FROM c"
)

REPORT = f"""\
title: The shop, every minute
database: demo
timezone: Europe/Berlin
ready_in_s: 120
statement_timeout_s: 2
results: [csv]
items:
  - title: Customers
    question: How many customers do we have?
  - title: Broken
    sql: SELECT broken FROM nowhere
  - title: Slow
    sql: {ROWS_FOR_EVER}
  - title: Orders by status
    sql: SELECT status, COUNT(*) AS orders FROM "order" GROUP BY status
    chart: {{kind: horizontal_bar, x: status, y: orders}}
"""


async def run_of_the_schedule(client: PrefectClient) -> FlowRun:
    """The first run of `sql-report/nightly` that ends."""
    async with asyncio.timeout(400):
        while True:
            runs = await client.read_flow_runs(
                deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["nightly"]))
            )
            ended = [run for run in runs if run.state is not None and run.state.is_final()]
            if ended:
                return min(ended, key=lambda run: str(run.expected_start_time))
            await asyncio.sleep(1)


async def test_a_cron_runs_it_and_it_says_what_failed(tmp_path: Path) -> None:
    report = tmp_path / "shop.yaml"
    report.write_text(REPORT, encoding="utf-8")
    archive = tmp_path / "archive"
    async with running_stack(tmp_path / "state", "hexgen") as stack:
        async with PrefectClient(stack.api_url) as client:
            deployment = await client.read_deployment_by_name("sql-report/nightly")
            every_minute = CronSchedule(cron="* * * * *", timezone="Europe/Berlin")
            changed: dict[str, Any] = {
                "parameters": {"report": str(report), "archive": str(archive)},
                "schedules": [DeploymentScheduleUpdate(schedule=every_minute, active=True)],
            }
            await client.update_deployment(deployment.id, DeploymentUpdate(**changed))
            run = await run_of_the_schedule(client)
        assert run.auto_scheduled, "the schedule made it"
        assert run.state is not None
        assert run.state.name == "Partial", run.state.message
        assert run.state.message == "2 of 4 items failed: Broken, Slow"
        shown = await artifacts_of(stack, str(run.id))
    known = Archive.of(archive, "shop")
    outcome = await asyncio.to_thread(lambda: known.night(known.dates()[0]).outcome())
    assert outcome is not None
    reasons = {item.title: item.reason for item in outcome.items}
    assert "nowhere" in str(reasons["Broken"])
    assert "2 s" in str(reasons["Slow"])
    assert outcome.in_time
    assert any("Partial: 2 of 4 items failed" in text for text in shown["markdown"])
    assert shown["image"]
    picture = tmp_path / "report.png"
    await asyncio.to_thread(photograph, known.night(known.dates()[0]).document, picture)


def photograph(document: Path, picture: Path) -> None:
    """Open the document in a browser without any network, where there is one."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return
    profile = picture.with_name("browser")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--no-first-run", f"--user-data-dir={profile}",
        "--window-size=1100,1400", f"--screenshot={picture}", document.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
