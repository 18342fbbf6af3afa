"""`hexprefect ask`: one question, from the command line."""

from __future__ import annotations

import asyncio
import math
import os
import uuid
from contextlib import AsyncExitStack
from typing import Annotated, Any

import sqlalchemy
import typer
from rich.text import Text
from sqlalchemy.exc import ArgumentError

from hexprefect.commands.output import (
    ANSWERED,
    CALLERS_MISTAKE,
    NO_ANSWER,
    Json,
    StoreUrl,
    err,
    print_json,
    run,
)
from hexprefect.commands.prefect_faults import prefect_faults
from hexprefect.commands.queries import print_answer
from hexprefect.commands.store import existing, store_faults
from hexprefect.embedded.folders import Folders, default_folders
from hexprefect.embedded.in_process import (
    configured_api_url,
    own_prefect_server,
    prepare_environment,
    serving_instances,
)
from hexprefect.errors import CallerMistake, HexprefectError, NoAnswer
from hexprefect.orchestration.answer_record import empty_record, failed
from hexprefect.store import Store, UnknownTenant, upgrade
from hexprefect.store.opening import open_current
from hexprefect.store.queries import check_slo
from hexprefect.store.values import UnknownQuery
from hexprefect.store.views import query_record, tenant_records
from hexprefect.text2sql import Database
from hexprefect.urls import holds_secret, refuse_secrets

DEPLOYMENT = "text2sql/ask"


def ask_command(
    question: Annotated[str, typer.Argument(help="In plain words, in any language.")],
    database: Annotated[
        str,
        typer.Option(
            "--database",
            "-d",
            help="A URL (sqlite:////path), a Text2SQLDatabase block, or env:VARIABLE.",
        ),
    ],
    slo: Annotated[
        float | None, typer.Option("--slo", help="Seconds until the answer is due.")
    ] = None,
    tenant: Annotated[str, typer.Option(help="Whose question it is.")] = "default",
    evidence: Annotated[str, typer.Option(help="What else is known about its words.")] = "",
    model: Annotated[
        str, typer.Option(help="Local model, where no instance is running: 0.5B or 1.5B.")
    ] = "1.5B",
    in_process: Annotated[
        bool,
        typer.Option("--in-process", help="Run here, although a Prefect server is configured."),
    ] = False,
    store: StoreUrl = None,
    as_json: Json = False,
) -> None:
    """Ask one question of a database, and print the SQL and its rows.

    With a Prefect server configured, the question runs as the deployment text2sql/ask. Without one
    it runs in this process, on SQLite, with the instances in the store or two local ones.

    Exit code 0: answered. 2: the caller's mistake. 3: no answer could be produced.
    """
    asked = {"question": question, "tenant": tenant, "slo_s": slo, "evidence": evidence}
    try:
        if not question.strip():
            raise CallerMistake("The question is empty.", remedy="Ask something.")
        if slo is not None:
            check_slo(slo)
        if configured_api_url() and not in_process:
            record = run(_ask_server({**asked, "database": database}, store))
        else:
            folders = default_folders()
            url = prepare_environment(folders, store)
            record = run(_ask_here({**asked, "database": database}, folders, url, model))
    except HexprefectError as error:
        due = slo if slo is not None and math.isfinite(slo) else None
        known = empty_record(question=question, database="", tenant=tenant, slo_s=due)
        mistake = isinstance(error, (CallerMistake, UnknownTenant))
        record = failed(known, str(error), "caller" if mistake else "no_answer")
    if as_json:
        print_json(record)
    else:
        print_answer(record)
    raise typer.Exit(exit_code(record))


def exit_code(record: dict[str, Any]) -> int:
    """Of an answer record."""
    if record["state"] == "answered":
        return ANSWERED
    return CALLERS_MISTAKE if record["error_kind"] == "caller" else NO_ANSWER


def _out_of_sight(database: str) -> str:
    """A URL with a secret, as a variable of this process: parameters are kept by Prefect."""
    try:
        parsed = sqlalchemy.make_url(database)
    except (ArgumentError, ValueError):
        return database
    if not holds_secret(parsed):
        return database
    variable = f"HEXPREFECT_DATABASE_{uuid.uuid4().hex}"
    os.environ[variable] = database
    return f"env:{variable}"


async def _ask_here(
    asked: dict[str, Any], folders: Folders, store_url: str, model: str
) -> dict[str, Any]:
    await _check_early(asked, store_url)
    asked = {**asked, "database": _out_of_sight(asked["database"])}
    with err.status("Starting a Prefect server and the instances…") as status:
        async with AsyncExitStack() as stack:
            _, names = await asyncio.gather(
                stack.enter_async_context(own_prefect_server(folders)),
                stack.enter_async_context(serving_instances(store_url, model=model)),
            )
            status.update(Text(f"Asking {', '.join(names)}…"))
            from prefect.logging.handlers import APILogHandler

            from hexprefect.flows.text2sql import ask
            from hexprefect.orchestration.background_loop import background_loop

            state: Any = await ask(**asked, return_state=True)
            record: dict[str, Any] = await state.aresult(raise_on_failure=False)
            await background_loop().from_other_loop(background_loop().leave_queues())
            await APILogHandler.aflush()
    return _checked(record)


async def _check_early(asked: dict[str, Any], store_url: str) -> None:
    """Find the caller's mistakes before anything is started for the question.

    Raises:
        UnknownTenant, CallerMistake: as the flow itself would.
    """
    with store_faults(store_url):
        await asyncio.to_thread(upgrade, store_url)
        store = Store(store_url)
        try:
            tenants = await store.read_async(tenant_records)
        finally:
            store.close()
    enabled = [tenant["name"] for tenant in tenants if tenant["enabled"]]
    if asked["tenant"] not in enabled:
        raise UnknownTenant(
            f"The tenant {asked['tenant']!r} is not known, or is disabled.",
            remedy=f"Use one of: {', '.join(enabled)}; or `hexprefect tenants add`.",
        )
    if "://" in asked["database"]:
        async with await Database.connect(asked["database"]):
            """It answers."""


async def _ask_server(asked: dict[str, Any], store_url: str | None) -> dict[str, Any]:
    with err.status("Waiting for the flow run…"):
        return await ask_deployment(asked, store_url)


async def ask_deployment(asked: dict[str, Any], store_url: str | None) -> dict[str, Any]:
    """Ask through the deployment `text2sql/ask` of the configured Prefect server.

    Args:
        asked: the flow's parameters.
        store_url: where the deployment's store is; by default that of the settings.

    Returns:
        The answer record.

    Raises:
        CallerMistake: there is no such deployment, or the database is a URL with a secret; nothing
            was sent then; or the server cannot be used.
        StoreNotReady: the store cannot be read.
        NoAnswer: the flow run ended without an answer record.
    """
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    from hexprefect.settings import settings

    refuse_secrets(asked["database"])
    url = store_url or settings().store.get_secret_value()
    with store_faults(url):
        # Before Prefect is told: an answer that cannot be fetched is asked for in vain.
        opened = await asyncio.to_thread(open_current, existing(url))
        try:
            with prefect_faults(", or add --in-process"):
                running: Any = run_deployment(DEPLOYMENT, parameters=asked, timeout=None)
                flow_run = await running
            known = await opened.read_async(
                lambda connection: query_record(connection, str(flow_run.id))
            )
        except ObjectNotFound:
            raise CallerMistake(
                f"The Prefect server has no deployment {DEPLOYMENT}.",
                remedy="Deploy it with `prefect deploy --all`, or add --in-process.",
            ) from None
        except UnknownQuery:
            # It ended before it was a query: the flow refused it, and its state says why.
            said = flow_run.state.message or flow_run.state.name
            raise NoAnswer(
                f"The flow run {flow_run.id} has no query in this store: {said}"
            ) from None
        finally:
            opened.close()
    if known["answer"] is None:
        raise NoAnswer(f"The flow run {flow_run.id} ended {flow_run.state}.")
    return _checked(known["answer"])


def _checked(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or "state" not in record:
        raise NoAnswer(f"The flow run ended without an answer: {record}")
    return record
