"""`hexprefect reports`: check a report's file before the night does, and look at past nights."""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from hexprefect.commands.output import (
    CALLERS_MISTAKE,
    FAILED,
    Json,
    errors_for_people,
    out,
    print_json,
    run,
)
from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.reports import Report, ReportMistake, read_report
from hexprefect.reports.archive import Archive
from hexprefect.reports.due import due
from hexprefect.reports.outcome import summary_rows
from hexprefect.reports.parameters import parameters_of
from hexprefect.settings import state_folder
from hexprefect.urls import refuse_secrets

app = typer.Typer(no_args_is_help=True, help="Nightly reports: check their files, see past nights.")

ArchiveFolder = Annotated[
    Path | None,
    typer.Option("--archive", help="Folder of all reports; in the state folder by default."),
]


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="The report's YAML file.")],
    connect: Annotated[
        str | None,
        typer.Option(
            help="Also put every pinned statement through the guard of this database: a URL, "
            "`demo` or env:VARIABLE."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a report file, each mistake with its line and the way out.

    Exit code 0: it can be used. 1: a pinned statement would be refused. 2: the file has mistakes.
    """
    try:
        report = read_report(file)
    except ReportMistake as mistake:
        if as_json:
            problems = [asdict(problem) for problem in mistake.problems]
            print_json({"file": str(file), "usable": False, "problems": problems})
        else:
            for problem in mistake.problems:
                out.print(Text.assemble((str(file), "red"), f" {problem}"), soft_wrap=True)
        raise typer.Exit(CALLERS_MISTAKE) from None
    with errors_for_people(as_json=as_json):
        refuse_secrets(report.database)
    refused = []
    if connect is not None:
        with errors_for_people(as_json=as_json):
            refused = run(_refused(report, connect))
    if as_json:
        print_json({"file": str(file), "usable": not refused, "problems": refused, **_plan(report)})
    else:
        _print_plan(report)
        for entry in refused:
            said = Text.assemble((entry["place"], "red"), f": {entry['problem']}")
            out.print(said, soft_wrap=True)
    if refused:
        raise typer.Exit(FAILED)


@app.command("list")
def list_nights(archive: ArchiveFolder = None, as_json: Json = False) -> None:
    """Show every report with its nights, the newest first."""
    root = archive or state_folder() / "reports"
    nights = [
        (folder.name, known.night(date))
        for folder in sorted(root.glob("*"))
        if folder.is_dir()
        for known in [Archive(folder)]
        for date in reversed(known.dates())
    ]
    records: list[dict[str, Any]] = []
    for name, night in nights:
        outcome = night.outcome()
        if outcome is not None:
            records.append(
                {
                    "report": name,
                    "date": outcome.date,
                    "state": outcome.state,
                    "in_time": outcome.in_time,
                    "message": outcome.message,
                    "document": str(night.document),
                }
            )
    if as_json:
        print_json({"nights": records})
        return
    table = Table("report", "night", "state", "in time", "outcome")
    for record in records:
        table.add_row(
            record["report"],
            record["date"],
            record["state"],
            "yes" if record["in_time"] else "no",
            record["message"],
        )
    out.print(table if records else f"No reports yet in {root}.")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of the report, as in `reports list`.")],
    date: Annotated[
        str | None, typer.Argument(help="The night, for example 2026-11-30; the newest by default.")
    ] = None,
    archive: ArchiveFolder = None,
    as_json: Json = False,
) -> None:
    """Show one night: what became of each item, and where the document is."""
    with errors_for_people(as_json=as_json):
        known = Archive.of(archive or state_folder() / "reports", name)
        dates = known.dates()
        if not dates:
            raise CallerMistake(
                f"No night of a report {name!r} in {known.folder.parent}.",
                remedy="See `hexprefect reports list`.",
            )
        wanted = _date(date) if date else dates[-1]
        night = known.night(wanted)
        outcome = night.outcome()
        if outcome is None:
            shown = ", ".join(known_date.isoformat() for known_date in dates[-5:])
            raise CallerMistake(f"No night {wanted} of {name!r}.", remedy=f"Newest: {shown}.")
    if as_json:
        print_json({**outcome.as_record(), "document": str(night.document)})
        return
    table = Table("item", "state", "rows", "SQL from", "change", "reason", title=outcome.title)
    for row in summary_rows(outcome):
        table.add_row(
            *(
                "" if row[key] is None else str(row[key])
                for key in ("item", "state", "rows", "SQL from", "change", "reason")
            )
        )
    out.print(table)
    out.print(str(night.document), soft_wrap=True, highlight=False)


async def _refused(report: Report, database: str) -> list[dict[str, Any]]:
    from hexprefect.orchestration.databases import open_database

    parameters = parameters_of(report, date=_night(report))
    found = []
    async with await open_database(database, tenant=report.tenant) as opened:
        for number, item in enumerate(report.items, 1):
            if item.sql is None:
                continue
            try:
                await opened.check(parameters.sql(item.sql, dialect=opened.dialect))
            except HexprefectError as error:
                found.append({"line": None, "place": f"items.{number}.sql", "problem": str(error)})
    return found


def _night(report: Report) -> datetime.date:
    now = datetime.datetime.now(datetime.UTC).timestamp()
    return due(report, scheduled_at=now, started_at=now, by_hand=True).date


def _plan(report: Report) -> dict[str, Any]:
    """What a run that started now would ask."""
    date = _night(report)
    parameters = parameters_of(report, date=date)
    return {
        "title": parameters.text(report.title),
        "name": report.name,
        "database": report.database,
        "ready_by": report.ready_by,
        "timezone": report.timezone,
        "date": date.isoformat(),
        "items": [
            {
                "title": parameters.text(item.title),
                "question": item.question and parameters.text(item.question),
                "pinned": item.sql is not None,
                "chart": item.chart and item.chart.kind,
            }
            for item in report.items
        ],
        "recipients": [recipient.block for recipient in report.recipients],
        "parameters": json.loads(
            json.dumps(
                {key: value for key, value in parameters.values.items() if not callable(value)},
                default=str,
            )
        ),
    }


def _print_plan(report: Report) -> None:
    plan = _plan(report)
    when = f"by {plan['ready_by']} {plan['timezone']}" if plan["ready_by"] else "on demand"
    out.print(
        Text.assemble(
            (plan["title"], "bold"), f" of {plan['database']}, {when}; as of {plan['date']}:"
        ),
        highlight=False,
    )
    table = Table("item", "asks", "chart")
    for item in plan["items"]:
        asks = "pinned SQL" if item["pinned"] else item["question"]
        table.add_row(item["title"], asks or "", item["chart"] or "")
    out.print(table)
    to = ", ".join(plan["recipients"])
    out.print(f"Sent to: {to}." if to else "Sent to nobody: add `recipients:`.", highlight=False)


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError as error:
        raise CallerMistake(f"{text!r} is no date.", remedy="Write it as 2026-11-30.") from error
