"""`sql-report/nightly`: a YAML file of questions and pinned SQL becomes one report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import CallerMistake
from hexprefect.flows.text2sql import ask, tag_flow_run
from hexprefect.orchestration.databases import database_url, shown_database
from hexprefect.orchestration.report import (
    ReportItem,
    read_report,
    report_markdown,
    run_report,
    summary_rows,
)
from hexprefect.text2sql import Database

REPORTS = Path(__file__).parent / "reports"


@flow(
    name="sql-report",
    description="Answer the questions of a report file, with one common deadline.",
)
async def sql_report(
    report: Annotated[
        str, Field(description="Path of a report's YAML file, or the name of a shipped one.")
    ] = "shop_daily",
) -> State[dict[str, Any]]:
    """Run a report.

    Returns:
        Completed when every item was answered; Completed with the name `Partial` when some failed,
        and the message says which; Failed when none was answered.
    """
    try:
        wanted = await asyncio.to_thread(read_report, find_report(report))
        await tag_flow_run(
            f"tenant:{wanted.tenant}", f"database:{shown_database(wanted.database)}", "report"
        )
        url = await database_url(wanted.database)
        database = await Database.connect(url)
    except CallerMistake as mistake:
        return Failed(message=str(mistake))

    async def ask_item(item: ReportItem, left_s: float) -> dict[str, Any]:
        state: Any = await ask(
            question=item.question or "",
            database=wanted.database,
            tenant=wanted.tenant,
            slo_s=left_s,
            evidence=item.evidence,
            return_state=True,
        )
        record: dict[str, Any] = await state.aresult(raise_on_failure=False)
        if isinstance(record, BaseException):
            raise CallerMistake(f"Its flow run ended {state.name}: {state.message}")
        return record

    async with database:
        outcomes = await run_report(wanted, database=database, ask=ask_item)
    summary = summary_rows(outcomes)
    await asyncio.gather(
        acreate_markdown_artifact(report_markdown(wanted, outcomes), description=wanted.title),
        acreate_table_artifact(summary, description=f"{wanted.title}: what became of each item."),
    )
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    result = {"title": wanted.title, "items": summary}
    if len(failed) == len(outcomes):
        return Failed(message=f"No item was answered. First: {failed[0].reason}", data=result)
    if failed:
        names = ", ".join(outcome.item.title for outcome in failed)
        return Completed(
            name="Partial",
            message=f"{len(failed)} of {len(outcomes)} items failed: {names}",
            data=result,
        )
    return Completed(message=f"All {len(outcomes)} items answered", data=result)


def find_report(report: str) -> Path:
    """A shipped report by its name, or else a path."""
    shipped = REPORTS / f"{report}.yaml"
    return shipped if "/" not in report and shipped.exists() else Path(report)
