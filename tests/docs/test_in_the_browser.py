"""A person asks in Prefect's UI: the run form, the flow run, the artifacts; and opens a report.

Real headless Chromium on a real Prefect server, worker and database; emulated instances write SQL.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_deployments import run_deployment, running_stack

pytest.importorskip("playwright", reason="playwright is not installed")

from docs.images.prefect_pages import PrefectPages, browser_page, find_chromium

CHROMIUM = find_chromium()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (or set CHROMIUM)"),
]

QUESTION = "How many customers do we have?"

REPORT = """\
title: What the browser shows
database: demo
results: []
items:
  - title: Orders by status
    sql: SELECT status, COUNT(*) AS orders FROM "order" GROUP BY status ORDER BY status
    chart: {kind: bar, x: status, y: orders}
  - title: Broken
    sql: SELECT broken FROM nowhere
"""


async def test_a_question_is_asked_in_the_run_form_and_followed_to_its_artifacts(
    tmp_path: Path,
) -> None:
    assert CHROMIUM is not None
    async with running_stack(tmp_path / "state", "hexgen") as stack, browser_page(CHROMIUM) as page:
        pages = PrefectPages(page, stack.ui_url)
        await pages.open_run_form("ask")
        described = await pages.descriptions_in_run_form()
        assert {"question", "database", "tenant", "slo_s", "evidence", "slo_class"} <= set(
            described
        )
        assert "In plain words, in any language." in described["question"]
        assert "interactive 30 s" in described["slo_class"]
        await pages.fill_run_form({"question": QUESTION, "database": "demo"})
        await pages.photograph(tmp_path / "form.png")
        await pages.submit_run_form()

        assert await pages.follow_flow_run(QUESTION) == "Completed"
        header = await page.inner_text("body")
        assert "database:demo" in header
        assert "tenant:default" in header

        artifacts = await pages.open_artifacts()
        sql = await pages.open_artifact(artifacts[QUESTION], "SELECT")
        assert "COUNT(*)" in sql
        assert "customer" in sql
        assert "400" in await pages.open_artifact(artifacts["One row."], "400")
        calls = artifacts["Where its LLM calls ran."]
        timeline = await pages.open_artifact(calls, "candidate_generation")
        assert "emulated-" in timeline
        await pages.photograph(tmp_path / "timeline.png")
    for name in ("form.png", "timeline.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


async def test_a_report_opens_without_any_network(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    report = tmp_path / "shown.yaml"
    report.write_text(REPORT, encoding="utf-8")
    archive = tmp_path / "archive"
    async with running_stack(tmp_path / "state", "hexgen") as stack:
        await run_deployment(stack, "sql-report/nightly", report=str(report), archive=str(archive))
    [document] = (archive / "shown").glob("*/report.html")
    async with browser_page(CHROMIUM) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(document.as_uri())
        shown = await page.inner_text("body")
        assert "What the browser shows" in shown
        assert "Orders by status" in shown
        assert "Partial" in shown
        assert "nowhere" in shown
        charts = await page.locator("img, svg").all()
        assert charts
        for chart in charts:
            box = await chart.bounding_box()
            assert box is not None
            assert box["width"] > 100
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        await page.screenshot(path=tmp_path / "report.png", full_page=True)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
