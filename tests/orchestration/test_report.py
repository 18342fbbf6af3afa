"""`sql-report` as a flow: questions through the queue, files, artifacts, delivery, repetition."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import State

from hexprefect.errors import CallerMistake
from hexprefect.flows.sql_report import sql_report
from hexprefect.instances.emulator import Computed, Emulator, Generation
from hexprefect.instances.profiles import default_profile
from hexprefect.orchestration.databases import demo_database_url
from hexprefect.orchestration.prefect_internals import FlowRunContext
from hexprefect.orchestration.report import Wanted
from hexprefect.orchestration.report_delivery import SEND_LOCK
from hexprefect.reports.archive import Archive
from hexprefect.store import InstanceSpec, tables
from hexprefect.store.fleet import enter_instance
from tests.orchestration.bench import Fleet

pytestmark = [pytest.mark.usefixtures("seen_by_prefect"), pytest.mark.timeout(180)]

NIGHT = datetime.date(2026, 12, 1)

REPORT = """\
title: The shop on {{ yesterday }}
name: shop
database: demo
results: [csv]
items:
  - title: Customers
    question: How many customers do we have?
    expect: {rows: 1}
  - title: Orders by status
    sql: SELECT status, COUNT(*) AS orders FROM "order" GROUP BY status
    chart: {x: status, y: orders}
"""


def sql_writer(generation: Generation) -> str:
    if "JSON object" in generation.text.rsplit("Question:", 1)[-1]:
        return '{"tables": ["customer"], "columns": ["customer.id"], "values": []}'
    return "```sql\nSELECT COUNT(*) AS n FROM customer\n```"


@pytest.fixture
async def instance(fleet: Fleet) -> AsyncIterator[None]:
    """An emulated instance that writes SQL."""
    emulator = Emulator.serve(
        profile="a100", name="gpu", time_scale=400.0, content=Computed(sql_writer)
    )
    async with emulator as endpoint:
        spec = InstanceSpec(
            name="gpu",
            url=endpoint.url,
            model=endpoint.model,
            speaks="vllm",
            profile=default_profile("a100"),
            slots=2,
        )
        await asyncio.to_thread(fleet.store.transact, lambda tx: enter_instance(tx, spec))
        yield


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEXPREFECT_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


class Webhook:
    """A server that keeps what it is sent, or refuses it."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.status = 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        [length] = [line for line in head.split("\r\n") if line.startswith("content-length")]
        body = await reader.readexactly(int(length.split(":")[1]))
        if self.status == 200:
            self.received.append(json.loads(body))
        writer.write(f"HTTP/1.1 {self.status} X\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    """A notification block `custom-webhook/team` that posts to a server of this test."""
    kept = Webhook()
    server = await asyncio.start_server(kept.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    block = CustomWebhookNotificationBlock(
        name="team",
        url=f"http://127.0.0.1:{port}/",
        json_data={"subject": "{{subject}}", "body": "{{body}}"},
    )
    await block.asave("team", overwrite=True)
    yield kept
    server.close()


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "report.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


async def run(report: str, **parameters: Any) -> State[Any]:
    parameters.setdefault("date", NIGHT)
    state: Any = await sql_report(report=report, **parameters, return_state=True)
    return state


async def artifacts_of(flow_run_id: Any) -> dict[str, Any]:
    async with get_client() as client:
        found = await client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
        )
    return {str(one.key): one.data for one in found}


def text_of(document: str | Path) -> str:
    return Path(document).read_text(encoding="utf-8")


def asked(fleet: Fleet) -> int:
    return len(fleet.rows(tables.queries))


async def test_a_night_leaves_a_document_results_and_artifacts(
    tmp_path: Path, fleet: Fleet, instance: None
) -> None:
    state = await run(write(tmp_path, REPORT), archive=str(tmp_path / "archive"))
    assert (state.name, state.message) == ("Completed", "All 2 items answered")
    result = await state.aresult()
    night = tmp_path / "archive" / "shop" / "2026-12-01"
    assert result["document"] == str(night / "report.html")
    html = text_of(night / "report.html")
    assert "The shop on 2026-11-30" in html
    assert "data:image/svg+xml;base64," in html
    assert text_of(night / "results" / "customers.csv") == "n\n400\n"
    shown = await artifacts_of(state.state_details.flow_run_id)
    assert "The shop on 2026\\-11\\-30" in shown["report-shop"].replace("-", "\\-")
    assert shown["report-shop-orders-by-status"].startswith("data:image/png;base64,")
    assert [row["state"] for row in json.loads(shown["report-shop-items"])] == ["answered"] * 2
    [query] = fleet.rows(tables.queries)
    assert (query["tenant"], query["state"]) == ("default", "answered")
    # The common deadline, less what is kept back for writing.
    assert query["slo_s"] == pytest.approx(3600 - 30, abs=60)


async def test_a_second_run_of_the_night_changes_nothing_and_sends_nothing(
    tmp_path: Path, fleet: Fleet, instance: None, webhook: Webhook
) -> None:
    report = write(tmp_path, REPORT + "recipients: [{block: custom-webhook/team}]\n")
    first = await (await run(report)).aresult()
    document = Path(first["document"])
    before = text_of(document)
    [message] = webhook.received
    assert message["subject"] == "The shop on 2026-11-30, 2026-12-01"
    assert "- Customers: 400" in message["body"]
    assert str(document) in message["body"]

    second = await (await run(report)).aresult()
    assert second["document"] == first["document"]
    assert text_of(document) == before
    assert len(webhook.received) == 1
    assert asked(fleet) == 1

    await run(report, again=True)
    assert asked(fleet) == 1, "the next run of a question takes its kept SQL"


async def test_a_report_with_a_broken_item_says_so_and_is_sent_again_once_it_is_whole(
    tmp_path: Path, instance: None, webhook: Webhook
) -> None:
    broken = REPORT.replace('FROM "order"', "FROM ordr")
    recipients = "recipients: [{block: custom-webhook/team, when: problems}]\n"
    state = await run(write(tmp_path, broken + recipients))
    assert state.name == "Partial"
    assert state.message == "1 of 2 items failed: Orders by status"
    document = Path((await state.aresult())["document"])
    assert "Partial: 1 of 2 items failed" in text_of(document).replace("</strong>", "")
    [message] = webhook.received
    assert message["subject"].endswith("(partial)")
    assert "ordr" in message["body"]

    whole = await run(write(tmp_path, REPORT + recipients.replace("problems", "always")))
    assert whole.name == "Completed"
    assert len(webhook.received) == 2


async def test_a_recipient_that_is_not_reached_gets_it_from_the_next_run(
    tmp_path: Path, instance: None, webhook: Webhook
) -> None:
    report = write(tmp_path, REPORT + "recipients: [{block: custom-webhook/team}]\n")
    webhook.status = 500
    state = await run(report)
    assert state.name == "Partial"
    assert "did not reach custom-webhook/team" in str(state.message)
    webhook.status = 200
    assert (await run(report)).name == "Completed"
    assert len(webhook.received) == 1


async def test_two_runs_do_not_send_one_night_at_once(
    tmp_path: Path, instance: None, webhook: Webhook, state_folder: Path
) -> None:
    report = write(tmp_path, REPORT + "recipients: [{block: custom-webhook/team}]\n")
    with Archive.of(state_folder / "reports", "shop").night(NIGHT).locked(SEND_LOCK):
        state = await run(report)
    assert state.name == "Partial"
    assert "Another run of this night is sending it" in str(state.message)
    assert webhook.received == []
    assert (await run(report)).name == "Completed"
    assert len(webhook.received) == 1


async def test_a_night_that_brought_nothing_new_is_no_news(
    tmp_path: Path, instance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with an item that is not as expected and is therefore run again."""
    told: list[dict[str, Any]] = []

    def keep(event: str, *more: Any, **options: Any) -> None:
        if event.startswith("hexprefect.report."):
            told.append({"event": event, **options})

    monkeypatch.setattr("hexprefect.orchestration.events.emit_event", keep)
    report = write(tmp_path, REPORT.replace("rows: 1", "rows: 7"))
    first = await (await run(report)).aresult()
    before = text_of(first["document"])
    await run(report)
    assert text_of(first["document"]) == before
    assert [one["event"] for one in told] == ["hexprefect.report.partial"] * 2
    assert told[0]["id"] == told[1]["id"], "Prefect takes an event of one id once"


async def test_a_recipient_that_does_not_exist_is_named(tmp_path: Path, instance: None) -> None:
    report = write(tmp_path, REPORT + "recipients: [{block: slack-webhook/nobody}]\n")
    state = await run(report)
    assert state.name == "Partial"
    assert "There is no block slack-webhook/nobody" in str(state.message)


async def test_the_change_since_the_night_before_is_in_the_report(
    tmp_path: Path, instance: None
) -> None:
    report = write(tmp_path, REPORT)
    await run(report)
    tomorrow = NIGHT + datetime.timedelta(days=1)
    result = await (await run(report, date=tomorrow)).aresult()
    assert "Since 2026-12-01: unchanged" in text_of(result["document"])
    assert [item["SQL from"] for item in result["items"]] == ["kept SQL", "pinned SQL"]


async def test_a_file_with_a_mistake_fails_the_run_with_the_line(tmp_path: Path) -> None:
    state = await run(write(tmp_path, REPORT.replace("    sql:", "    sqll:")))
    assert state.is_failed()
    assert "line 10, items.2.sqll" in str(state.message)
    assert "Did you mean 'sql'?" in str(state.message)


async def test_an_unknown_parameter_fails_the_run(tmp_path: Path) -> None:
    state = await run(write(tmp_path, REPORT), parameters={"year": 2020})
    assert state.is_failed()
    assert "no parameter 'year'" in str(state.message)


async def test_a_database_that_is_away_gives_a_report_that_says_so(
    tmp_path: Path, webhook: Webhook, state_folder: Path
) -> None:
    text = REPORT.replace("database: demo", f"database: sqlite:///{tmp_path}/nowhere.sqlite")
    report = write(tmp_path, text + "recipients: [{block: custom-webhook/team}]\n")
    state = await run(report)
    assert state.is_failed()
    assert "nowhere.sqlite" in str(state.message)
    outcome = Archive.of(state_folder / "reports", "shop").night(NIGHT).outcome()
    assert outcome is not None
    assert outcome.state == "failed"
    assert len(webhook.received) == 1


async def test_a_question_that_no_instance_answers_fails_alone(
    tmp_path: Path, fleet: Fleet
) -> None:
    """The fleet is empty, and the report is due soon."""
    await asyncio.to_thread(demo_database_url)
    state = await run(write(tmp_path, "ready_in_s: 15\n" + REPORT))
    assert state.name == "Partial"
    assert state.message == "1 of 2 items failed: Customers"
    assert fleet.violations() == []


@pytest.mark.parametrize("scheduled", [True, False])
async def test_only_a_schedules_run_may_belong_to_the_next_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduled: bool
) -> None:
    wanted: list[Wanted] = []

    async def look(night: Wanted, ask: Any) -> Any:
        wanted.append(night)
        raise CallerMistake("Seen.")

    class Context:
        @staticmethod
        def get() -> Any:
            found: Any = FlowRunContext.get()
            assert not found.flow_run.auto_scheduled
            run = found.flow_run.model_copy(update={"auto_scheduled": scheduled})
            return found.model_copy(update={"flow_run": run})

    monkeypatch.setattr("hexprefect.flows.sql_report.run_night", look)
    monkeypatch.setattr("hexprefect.flows.sql_report.FlowRunContext", Context)
    state = await run(write(tmp_path, REPORT), date=None)
    assert state.message == "Seen."
    assert [night.by_hand for night in wanted] == [not scheduled]


@pytest.mark.parametrize("shipped", ["shop_daily", "shop_year"])
async def test_the_shipped_reports_run(shipped: str, instance: None) -> None:
    """With a model that always counts customers: some questions get an answer of another shape."""
    state = await run(shipped)
    assert state.is_completed(), state.message
    result = await state.aresult()
    pinned = [item for item in result["items"] if item["SQL from"] == "pinned SQL"]
    assert pinned
    assert {item["state"] for item in pinned} == {"answered"}
