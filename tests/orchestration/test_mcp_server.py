"""`hexprefect mcp` as a program uses it: a real process, a session over its stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.states import Completed

from hexprefect.blocks import Text2SQLDatabase
from hexprefect.flows.text2sql import ask
from hexprefect.mcp_server import MOST_ROWS, Asking, status_of
from hexprefect.store import Store, upgrade
from hexprefect.store import queries as move_query
from hexprefect.store.values import NewQuery
from tests.integration.test_deployments import running_stack
from tests.orchestration.conftest import PrefectServer

mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")

pytestmark = [pytest.mark.usefixtures("seen_by_prefect")]

CALL_TIMEOUT_S = 120.0


@pytest.fixture
async def store_url(tmp_path: Path) -> str:
    """A store without an instance, and a database block called `mcp-shop`."""
    url = f"sqlite:///{tmp_path / 'store.sqlite'}"
    upgrade(url)
    block = Text2SQLDatabase(url=f"sqlite:///{tmp_path / 'shop.sqlite'}")
    await block.save("mcp-shop", overwrite=True)
    return url


@asynccontextmanager
async def session(server: PrefectServer, store_url: str, *more: str) -> AsyncIterator[Any]:
    """A client of `hexprefect mcp`, with what a client's configuration file would say."""
    command = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "hexprefect", "mcp", "--store", store_url, *more],
        env={**os.environ, **server.environment},
    )
    async with (
        mcp.stdio_client(command) as (read, write),
        mcp.ClientSession(read, write) as client,
    ):
        await client.initialize()
        yield client


async def call(client: Any, tool: str, **arguments: Any) -> Any:
    """What a tool returns; an error as its words."""
    result = await asyncio.wait_for(client.call_tool(tool, arguments), CALL_TIMEOUT_S)
    if result.is_error:
        return " ".join(part.text for part in result.content)
    return result.structured_content


@pytest.fixture
async def deployed(prefect_client: PrefectClient) -> AsyncIterator[None]:
    """The deployment `text2sql/ask`, which nobody has begun to serve."""
    flow_id = await prefect_client.create_flow(ask)
    deployment = await prefect_client.create_deployment(
        flow_id,
        name="ask",
        entrypoint="flows/text2sql.py:ask",
        path=str(Path(__file__).parents[2]),
        parameter_openapi_schema=ask.parameters.model_dump(),
    )
    yield
    await prefect_client.delete_deployment(deployment)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"question": "How many?", "database": "nobody"}, "mcp-shop"),
    ({"question": "How many?", "database": "sqlite:////etc/passwd"}, "Use one of"),
    ({"question": "How many?", "database": "env:PREFECT_API_KEY"}, "Use one of"),
    ({"question": " ", "database": "demo"}, "empty"),
    ({"question": "How many?", "database": "demo", "slo_s": -1}, "greater than 0"),
]
"""What is asked, and what the answer says of it."""


async def test_tools_describe_themselves_and_mistakes_are_told_with_the_way_out(
    prefect_server: PrefectServer, store_url: str, deployed: None
) -> None:
    """One session, because each loads Prefect anew."""
    enter_query(store_url, "theirs", "What do they earn?")
    async with session(prefect_server, store_url) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"list_databases", "ask_database", "query_status"}
        for tool in tools.values():
            assert tool.description
            for name, shown in tool.input_schema["properties"].items():
                assert shown.get("description"), f"{tool.name}({name})"
        assert set(tools["ask_database"].input_schema["required"]) == {"question", "database"}

        listed = (await call(client, "list_databases"))["result"]
        assert {"name": "mcp-shop", "kind": "block"} in listed
        assert {"name": "demo", "kind": "demo"} in listed

        for arguments, said in MISTAKES:
            assert said in await call(client, "ask_database", **arguments)

        known = await call(client, "query_status", id="theirs")
        assert known["question"] == "What do they earn?"

        # Nobody serves the deployment: the question is still known when it is due.
        told = await call(client, "ask_database", question="How many?", database="demo", slo_s=0.5)
        assert told["state"] == "waiting"
        assert told["id"]


async def test_a_query_of_another_tenant_is_not_told(
    prefect_server: PrefectServer, store_url: str
) -> None:
    enter_query(store_url, "theirs", "What do they earn?")
    async with session(prefect_server, store_url, "--tenant", "another") as client:
        assert "no query" in await call(client, "query_status", id="theirs")
        assert "no query" in await call(client, "query_status", id="nowhere")


@pytest.mark.parametrize(("ended", "shown"), [(True, "Completed"), (False, "Cancelled")])
async def test_a_caller_that_goes_away_cancels_what_has_not_ended(
    store_url: str,
    deployed: None,
    prefect_client: PrefectClient,
    monkeypatch: pytest.MonkeyPatch,
    ended: bool,
    shown: str,
) -> None:
    runs: list[UUID] = []

    async def go_away(self: Asking, client: PrefectClient, run_id: UUID, seconds: float) -> None:
        runs.append(run_id)
        if ended:
            await client.set_flow_run_state(run_id, Completed(), force=True)
        raise asyncio.CancelledError

    monkeypatch.setattr(Asking, "_wait", go_away)
    store = Store(store_url)
    with pytest.raises(asyncio.CancelledError):
        await Asking(store=store).ask("How many?", "demo", 60.0)
    store.close()
    state = (await prefect_client.read_flow_run(runs[0])).state
    assert state is not None
    assert state.name == shown


def enter_query(store_url: str, name: str, question: str) -> None:
    """A query of the default tenant."""
    store = Store(store_url)
    query = NewQuery(name, "default", "shop", 60.0, store.now(), question)
    store.transact(lambda tx: move_query.register_query(tx, query))
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_question_is_answered_with_its_sql_and_its_rows(tmp_path: Path) -> None:
    """With a worker: the whole way of a question, and the same answer when it is fetched again."""
    async with running_stack(tmp_path / "state", "hexgen") as stack:
        server = PrefectServer(stack.api_url, dict(stack.environment))
        async with session(server, stack.store_url) as client:
            told = await call(
                client, "ask_database", question="How many customers?", database="demo", slo_s=100
            )
            assert told["state"] == "answered", told
            assert told["rows"] == [[400]]
            assert "customer" in told["sql"].lower()
            again = await call(client, "query_status", id=told["id"])
            assert again == told


def test_a_long_answer_says_that_there_is_more() -> None:
    answer = {"rows": [[number] for number in range(MOST_ROWS + 1)], "columns": ["n"]}
    record = {
        "id": "q", "state": "answered", "question": "Which?", "sql": "SELECT 1",
        "answer": answer, "reason": None,
    }  # fmt: skip
    told = status_of(record)
    assert (len(told.rows), told.truncated) == (MOST_ROWS, True)
    assert json.loads(told.model_dump_json())["rows"][0] == [0]


def test_without_a_prefect_server_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from hexprefect.cli import app

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    ended = CliRunner().invoke(app, ["mcp"])
    assert ended.exit_code == 2
    assert "PREFECT_API_URL" in ended.output
