"""`prefect.yaml` deploys with Prefect's own commands, and both deployments run on both workers.

A real Prefect server, a real worker process, real flows and a real database; the two instances are
emulated servers that write SQL for the questions of this test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from hexprefect.embedded.children import Child
from hexprefect.embedded.folders import Folders
from hexprefect.embedded.prefect_server import client_environment, prefect_server
from hexprefect.embedded.stack import RunningStack, create_pools, entered, find_repository
from hexprefect.instances.emulator import Computed, Emulator, Generation
from hexprefect.instances.profiles import default_profile
from hexprefect.store import InstanceSpec, Store, check_laws, upgrade
from hexprefect.store.views import query_record

RUN_TIMEOUT_S = 240.0
FLOW_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def sql_writer(generation: Generation) -> str:
    """What a model would say to the questions that are asked here."""
    prompt = generation.text
    if "JSON object" in prompt.rsplit("Question:", 1)[-1]:
        return '{"tables": ["customer"], "columns": ["customer.id"], "values": []}'
    if "most expensive" in prompt.rsplit("Question:", 1)[-1]:
        return "```sql\nSELECT name, price FROM product ORDER BY price DESC, id LIMIT 1\n```"
    if "no such thing" in prompt.rsplit("Question:", 1)[-1]:
        return "```sql\nSELECT nothing FROM nowhere\n```"
    return "```sql\nSELECT COUNT(*) FROM customer\n```"


@asynccontextmanager
async def running_stack(state: Path, worker_type: str) -> AsyncIterator[RunningStack]:
    """As the embedded stack, with emulated instances instead of local models."""
    folders = Folders(state)
    async with AsyncExitStack() as stack:
        upgrade(folders.store_url)
        specs = []
        for name, scale in (("emulated-fast", 400.0), ("emulated-slow", 100.0)):
            endpoint = await stack.enter_async_context(
                Emulator.serve(
                    profile="a100", name=name, time_scale=scale, content=Computed(sql_writer)
                )
            )
            specs.append(
                InstanceSpec(
                    name=name,
                    pool=name,
                    url=endpoint.url,
                    model=endpoint.model,
                    speaks="vllm",
                    profile=default_profile("a100"),
                    slots=2,
                )
            )
        api_url = await stack.enter_async_context(
            prefect_server(folders.prefect_home, folders.logs)
        )
        environment = {
            **client_environment(folders.prefect_home, api_url),
            "HEXPREFECT_STORE": folders.store_url,
            "HEXPREFECT_STATE": str(folders.state),
        }
        running = RunningStack(folders, find_repository(), api_url, environment, tuple(specs))
        await create_pools(running, worker_type)
        await stack.enter_async_context(entered(running))
        await running.prefect("deploy", "--all")
        worker = Child(
            "worker",
            [
                *(sys.executable, "-m", "prefect", "worker", "start"),
                *("--pool", "text2sql", "--type", worker_type, "--name", "test"),
            ],
            environment={**environment, "PREFECT_WORKER_QUERY_SECONDS": "1"},
            log_folder=folders.logs,
            working_folder=running.repository,
        )
        await stack.enter_async_context(worker)
        yield running


async def run_deployment(stack: RunningStack, name: str, **parameters: Any) -> str:
    """Through Prefect's own command; returns the flow run's id. A failed run is for the caller."""
    arguments = [
        part for key, value in parameters.items() for part in ("-p", f"{key}={json.dumps(value)}")
    ]
    said = await stack.prefect(
        "deployment", "run", name, *arguments, "--watch", timeout_s=RUN_TIMEOUT_S
    )
    found = FLOW_RUN_ID.search(said)
    assert found is not None, said
    return found.group()


async def artifacts_of(stack: RunningStack, flow_run_id: str) -> dict[str, list[Any]]:
    """The data of a flow run's artifacts by their type."""
    async with PrefectClient(stack.api_url) as client:
        found = await client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
        )
    by_type: dict[str, list[Any]] = {}
    for artifact in found:
        by_type.setdefault(str(artifact.type), []).append(artifact.data)
    return by_type


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hexgen_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningStack]:
    """The stack with the warm worker, once for the tests that leave it whole."""
    async with running_stack(tmp_path_factory.mktemp("stack"), "hexgen") as stack:
        yield stack


@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
async def test_both_deployments_run_to_their_end(hexgen_stack: RunningStack) -> None:
    await check_both_deployments(hexgen_stack)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_both_deployments_run_on_prefects_own_worker(tmp_path: Path) -> None:
    async with running_stack(tmp_path, "process") as stack:
        await check_both_deployments(stack)


async def check_both_deployments(stack: RunningStack) -> None:
    """Ask and report through Prefect's own commands, and look at all that they left."""
    question = "How many customers do we have?"
    asked = await run_deployment(
        stack, "text2sql/ask", question=question, database="demo", slo_s=120
    )
    reported = await run_deployment(stack, "sql-report/nightly")

    async with PrefectClient(stack.api_url) as client:
        ask_run = await client.read_flow_run(asked)
        report_run = await client.read_flow_run(reported)
    assert ask_run.state is not None
    assert ask_run.state.is_completed()
    assert ask_run.name == question
    assert {"tenant:default", "database:demo"} <= set(ask_run.tags)
    assert report_run.state is not None
    assert report_run.state.is_completed()
    assert report_run.state.name == "Completed", report_run.state.message

    store = Store(stack.store_url)
    try:
        record = store.read(lambda connection: query_record(connection, asked))
        answer = record["answer"]
        assert answer["rows"] == [[400]]
        assert answer["met_slo"] is True
        assert {stage["state"] for stage in answer["stages"]} == {"finished"}
        assert {request["instance"] for request in record["requests"]} <= {
            "emulated-fast",
            "emulated-slow",
        }
        now = store.now()
        assert store.read(lambda connection: check_laws(connection, now=now)) == []
    finally:
        store.close()

    shown = await artifacts_of(stack, asked)
    assert "SELECT\n  COUNT(*)\nFROM customer" in shown["markdown"][0]
    assert any("400" in str(table) for table in shown["table"])
    assert shown["progress"] == [100.0]
    report = await artifacts_of(stack, reported)
    assert any("The most expensive product" in text for text in report["markdown"])
    assert not any("Partial" in text for text in report["markdown"])


@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
async def test_failures_say_why(hexgen_stack: RunningStack, tmp_path: Path) -> None:
    report = tmp_path / "broken.yaml"
    report.write_text(
        "title: One of three is broken\n"
        "database: demo\n"
        "items:\n"
        "  - {title: Good, question: 'How many customers do we have?'}\n"
        "  - {title: Broken, sql: DROP TABLE customer}\n"
        "  - {title: Pinned, sql: SELECT COUNT(*) FROM city}\n",
        encoding="utf-8",
    )
    partial = await run_deployment(hexgen_stack, "sql-report/nightly", report=str(report))
    async with PrefectClient(hexgen_stack.api_url) as client:
        partial_run = await client.read_flow_run(partial)
        deployment = await client.read_deployment_by_name("text2sql/ask")
        failed = await client.create_flow_run_from_deployment(
            deployment.id,
            parameters={"question": "Is there no such thing?", "database": "demo"},
        )
        state = await wait_for_final_state(client, failed.id)
    assert partial_run.state is not None
    assert partial_run.state.name == "Partial"
    assert partial_run.state.message == "1 of 3 items failed: Broken"
    assert state.is_failed()
    assert state.message
    assert "Traceback" not in state.message


@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_evaluation_asks_through_the_deployment(
    hexgen_stack: RunningStack, tmp_path: Path
) -> None:
    """The command as people run it; what cannot be answered is an answer of the evaluation, too."""
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.sqlite")) as shop:
        shop.executescript("CREATE TABLE customer (id INTEGER); INSERT INTO customer VALUES (1);")
    gold = "SELECT COUNT(id) FROM customer"
    asked = {"known": "How many customers do we have?", "unknown": "Is there no such thing?"}
    questions = tmp_path / "questions.jsonl"
    questions.write_text(
        "".join(
            json.dumps({"id": key, "db_id": "shop", "question": question, "gold_sql": gold}) + "\n"
            for key, question in asked.items()
        )
    )
    command = [
        *(sys.executable, "-m", "hexprefect", "eval", str(questions), "--stack", "--json"),
        *("--databases", str(tmp_path), "--at-once", "2", "--out", str(tmp_path / "run")),
    ]
    said = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**os.environ, **hexgen_stack.environment},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    figures = json.loads(said.stdout)
    assert figures["totals"]["bird_ex"]["right"] == 1
    assert figures["states"] == {"answered": 1, "failed": 1}
    assert figures["cost"]["stages"][-1]["calls"] >= 1


async def wait_for_final_state(client: PrefectClient, flow_run_id: Any) -> Any:
    async with asyncio.timeout(RUN_TIMEOUT_S):
        while True:
            state = (await client.read_flow_run(flow_run_id)).state
            if state is not None and state.is_final():
                return state
            await asyncio.sleep(0.5)
