"""Ask databases over the Model Context Protocol: three tools for a program that is itself a model.

The server is a client of a Prefect server and of the store: each question is a flow run of
`text2sql/ask`, so that it is scheduled, checked and kept like anybody else's. What may be asked is
what an operator has named, the Text2SQLDatabase blocks and the demo shop: no URL and no variable of
this process comes from the model. https://modelcontextprotocol.io
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

import httpx
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from prefect.client.orchestration import PrefectClient, get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling
from pydantic import BaseModel, Field

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.orchestration.databases import BLOCK_PREFIX, BLOCK_TYPE, DEMO
from hexprefect.store import Store
from hexprefect.store.queries import check_slo
from hexprefect.store.values import UnknownQuery
from hexprefect.store.views import query_record

DEPLOYMENT = "text2sql/ask"
GRACE_S = 5.0
"""How long an answer is waited for after it was due; later it is fetched by `query_status`."""
POLL_S = 0.5
MOST_ROWS = 100
"""Rows of an answer that a model is given: what is more is said to be there."""

INSTRUCTIONS = """\
Ask databases questions in plain words. Call list_databases first. ask_database writes SQL, checks \
it, runs it read-only and returns the SQL with its rows; look at the SQL before you rely on the \
rows. An answer that is not ready when it is due is fetched with query_status."""


class DatabaseName(BaseModel):
    """A database that may be asked."""

    name: str = Field(description="What ask_database takes as its database.")
    kind: Literal["block", "demo"]


class QueryStatus(BaseModel):
    """A question, and what has come of it so far."""

    id: str = Field(description="Of the query; its flow run in Prefect has the same.")
    state: str = Field(description="waiting, running, answered, failed or cancelled.")
    question: str
    sql: str | None = None
    columns: list[str] = []
    rows: list[list[Any]] = Field(default=[], description=f"The first {MOST_ROWS} at most.")
    truncated: bool = Field(default=False, description="Whether there are more rows than shown.")
    confidence: float | None = Field(
        default=None,
        description="Fraction of the candidates that gave these rows, 0 to 1; none of one alone.",
    )
    elapsed_s: float | None = None
    warnings: list[str] = []
    error: str | None = Field(default=None, description="Why there is no answer, and what to do.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Asks for one tenant, through one Prefect server and one store.

    Attributes:
        store: where answers are kept; the caller closes it.
        tenant: whose questions they are; a model does not choose it.
        open_client: makes a client of the Prefect server.
    """

    store: Store
    tenant: str = "default"
    open_client: Callable[[], PrefectClient] = get_client

    async def databases(self) -> list[DatabaseName]:
        """Every Text2SQLDatabase block by its name, and the demo shop."""
        async with self.open_client() as client:
            try:
                kind = await client.read_block_type_by_slug(BLOCK_TYPE)
            except ObjectNotFound:
                blocks = []
            else:
                blocks = await client.read_block_documents_by_type(kind.slug)
        names = sorted(block.name for block in blocks if block.name)
        return [
            *(DatabaseName(name=name, kind="block") for name in names),
            DatabaseName(name=DEMO, kind="demo"),
        ]

    async def ask(self, question: str, database: str, slo_s: float) -> QueryStatus:
        """Ask, and wait until the answer is due.

        A caller that goes away cancels its question, which frees what it holds.

        Raises:
            CallerMistake: the database, the time or the question make no sense.
        """
        check_slo(slo_s)
        if not question.strip():
            raise CallerMistake("The question is empty.", remedy="Ask something.")
        name = database.removeprefix(BLOCK_PREFIX)
        known = {one.name for one in await self.databases()}
        if name not in known:
            raise CallerMistake(
                f"There is no database {database!r} to be asked here.",
                remedy=f"Use one of: {', '.join(sorted(known))}.",
            )
        asked = {"question": question, "database": name, "tenant": self.tenant, "slo_s": slo_s}
        async with self.open_client() as client:
            try:
                deployment = await client.read_deployment_by_name(DEPLOYMENT)
            except ObjectNotFound:
                raise CallerMistake(
                    f"The Prefect server has no deployment {DEPLOYMENT}.",
                    remedy="An operator deploys it with `prefect deploy --all`.",
                ) from None
            run = await client.create_flow_run_from_deployment(deployment.id, parameters=asked)
            try:
                reason = await self._wait(client, run.id, slo_s + GRACE_S)
            except asyncio.CancelledError:
                # Not by force, which would take a run that has just ended out of its end.
                await asyncio.shield(client.set_flow_run_state(run.id, Cancelling()))
                raise
        status = await self._status_or_none(str(run.id))
        if status is None:
            state = "failed" if reason else "waiting"
            return QueryStatus(id=str(run.id), state=state, question=question, error=reason)
        return status

    async def status(self, query_id: str) -> QueryStatus:
        """What the store has of a query of this tenant.

        Raises:
            CallerMistake: there is none, or it is somebody else's.
        """
        status = await self._status_or_none(query_id)
        if status is None:
            raise CallerMistake(
                f"There is no query {query_id!r}.",
                remedy="Give the id that ask_database has returned; one that no worker has begun "
                "is not there yet.",
            )
        return status

    async def _status_or_none(self, query_id: str) -> QueryStatus | None:
        try:
            record = await self.store.read_async(
                lambda connection: query_record(connection, query_id)
            )
        except UnknownQuery:
            return None
        return status_of(record) if record["tenant"] == self.tenant else None

    async def _wait(self, client: PrefectClient, run_id: UUID, seconds: float) -> str | None:
        """Until the flow run ends or the time is up; why it ended without success, or None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = (await client.read_flow_run(run_id)).state
            if state is not None and state.is_final():
                return None if state.is_completed() else state.message or state.name
            await asyncio.sleep(POLL_S)
        return None


def status_of(record: dict[str, Any]) -> QueryStatus:
    """A query's record as a model is told of it."""
    answer = record.get("answer") or {}
    rows = answer.get("rows") or []
    return QueryStatus(
        id=record["id"],
        state=record["state"],
        question=record["question"] or "",
        sql=record["sql"] or answer.get("sql"),
        columns=answer.get("columns") or [],
        rows=rows[:MOST_ROWS],
        truncated=bool(answer.get("truncated")) or len(rows) > MOST_ROWS,
        confidence=answer.get("confidence"),
        elapsed_s=answer.get("elapsed_s"),
        warnings=answer.get("warnings") or [],
        error=answer.get("error") or record["reason"],
    )


@contextmanager
def _told() -> Iterator[None]:
    """Errors as the protocol has them, with the way out; a crash says nothing of its inside."""
    try:
        yield
    except HexprefectError as error:
        raise ToolError(str(error)) from error
    except httpx.HTTPError as error:
        raise ToolError(
            "The Prefect server does not answer. Try again, or tell an operator."
        ) from error


def mcp_server(asking: Asking) -> MCPServer[Any]:
    """The three tools, for one tenant."""
    server: MCPServer[Any] = MCPServer("hexprefect", instructions=INSTRUCTIONS)

    @server.tool()
    async def list_databases() -> list[DatabaseName]:
        """List the databases that may be asked."""
        with _told():
            return await asking.databases()

    @server.tool()
    async def ask_database(
        question: Annotated[str, Field(max_length=4000, description="In plain words.")],
        database: Annotated[str, Field(description="A name from list_databases.")],
        slo_s: Annotated[
            float, Field(gt=0, le=3600, description="Seconds until the answer is due.")
        ] = 120.0,
    ) -> QueryStatus:
        """Ask one question of a database; returns the checked SQL and its rows.

        Waits until the answer is due. When it is not ready then, its state is waiting or running:
        fetch it with query_status.
        """
        with _told():
            return await asking.ask(question, database, slo_s)

    @server.tool()
    async def query_status(
        id: Annotated[str, Field(description="The id that ask_database has returned.")],
    ) -> QueryStatus:
        """Tell what has come of a question that was asked before."""
        with _told():
            return await asking.status(id)

    return server
