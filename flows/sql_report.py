"""`sql-report/nightly`: a YAML file of questions and pinned SQL becomes one report a night."""

import asyncio
import datetime
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import CallerMistake
from hexprefect.flows.text2sql import ask, tag_flow_run
from hexprefect.orchestration.databases import shown_database
from hexprefect.orchestration.events import report_ended
from hexprefect.orchestration.prefect_internals import FlowRunContext
from hexprefect.orchestration.report import Finished, Wanted, run_night
from hexprefect.orchestration.report_delivery import create_report_artifacts, deliver
from hexprefect.reports import Report, read_report
from hexprefect.reports.outcome import summary_rows
from hexprefect.reports.running import Asked

REPORTS = Path(__file__).parent / "reports"


def run_name() -> str:
    """The report and the night name the flow run."""
    name = Path(str(flow_run.parameters.get("report", ""))).stem
    night = flow_run.parameters.get("date") or f"{flow_run.scheduled_start_time:%Y-%m-%d %H:%M}"
    return f"{name} {night}"


@flow(
    name="sql-report",
    flow_run_name=run_name,
    description="Answer the questions of a report file by a common deadline, and deliver them.",
)
async def sql_report(
    report: Annotated[str, Field(min_length=1, examples=["shop_daily"])] = "shop_daily",
    date: datetime.date | None = None,
    parameters: dict[str, Any] | None = None,
    archive: str | None = None,
    again: bool = False,
    send: bool = True,
) -> State[dict[str, Any]]:
    """Run a night of a report.

    Args:
        report: Path of a report's YAML file, or the name of a shipped one.
        date: A night of the past; by default the one that this run is scheduled for.
        parameters: Values that replace those of the report file for this run.
        archive: Folder for documents and results; in the state folder by default.
        again: Run also what an earlier run of this night has answered.
        send: Send it to the recipients of the file.

    Running a night again runs only what failed, and sends the report again only when it says
    something else than before.

    Returns:
        Completed when every item was answered as expected and all recipients were reached;
        Completed with the name `Partial` when some were not, and the message says which; Failed
        when no item was answered, or the file cannot be used.
    """
    try:
        wanted = await asyncio.to_thread(read_report, find_report(report))
        shown = shown_database(wanted.database)
        await tag_flow_run(f"tenant:{wanted.tenant}", f"database:{shown}", "report")
        night = Wanted(
            report=wanted,
            scheduled_at=flow_run.scheduled_start_time.timestamp(),
            date=date,
            by_hand=not _is_of_a_schedule(),
            parameters=parameters,
            archive=archive,
            again=again,
        )
        finished = await run_night(night, question_asker(wanted))
    except CallerMistake as mistake:
        return Failed(message=str(mistake))
    problems = await deliver(wanted, finished) if send else ()
    await create_report_artifacts(finished)
    report_ended(finished.outcome, str(finished.written.document))
    return final_state(finished, problems)


def _is_of_a_schedule() -> bool:
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    return run is not None and bool(run.auto_scheduled)


def question_asker(report: Report) -> Any:
    """Asks each question as a flow run of its own, beneath the report's."""

    async def ask_question(question: str, evidence: str, left_s: float) -> Asked:
        state: Any = await ask(
            question=question,
            database=report.database,
            tenant=report.tenant,
            slo_s=left_s,
            evidence=evidence,
            return_state=True,
        )
        record: Any = await state.aresult(raise_on_failure=False)
        if not isinstance(record, dict):
            return Asked(None, error=f"Its flow run ended {state.name}: {state.message}")
        return Asked(
            sql=record["sql"],
            columns=tuple(record["columns"]),
            types=tuple(record["types"]),
            rows=tuple(tuple(row) for row in record["rows"]),
            truncated=record["truncated"],
            error=record["error"],
            warnings=tuple(record["warnings"]),
            flow_run_id=record["flow_run_id"],
        )

    return ask_question


def final_state(finished: Finished, problems: tuple[str, ...]) -> State[dict[str, Any]]:
    """How the flow run ends, with a summary as its result."""
    outcome = finished.outcome
    result = {
        "title": outcome.title,
        "date": outcome.date,
        "state": outcome.state,
        "in_time": outcome.in_time,
        "document": str(finished.written.document),
        "items": summary_rows(outcome),
        "not_delivered": list(problems),
    }
    message = "; ".join((outcome.message, *problems))
    if outcome.state == "failed":
        first = outcome.items[0]
        return Failed(message=f"No item was answered. First: {first.reason}", data=result)
    if outcome.state == "partial" or problems:
        return Completed(name="Partial", message=message, data=result)
    return Completed(message=message, data=result)


def find_report(report: str) -> Path:
    """A shipped report by its name, or else a path."""
    shipped = REPORTS / f"{report}.yaml"
    return shipped if "/" not in report and shipped.exists() else Path(report)
