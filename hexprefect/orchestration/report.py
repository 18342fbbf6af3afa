"""A report: several questions and pinned statements with one common deadline, and one document."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.text2sql import Database, Rows

MOST_ROWS_SHOWN = 30
"""Rows of one item in the document; the flow run of a question has them all."""

AskQuestion = Callable[["ReportItem", float], Awaitable[dict[str, Any]]]
"""Answers an item's question within so many seconds; gives the answer record."""


class ReportItem(BaseModel):
    """One question, or one pinned statement."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    title: Annotated[str, Field(min_length=1, max_length=200)]
    question: Annotated[str | None, Field(min_length=1, max_length=4000)] = None
    sql: Annotated[str | None, Field(min_length=1)] = None
    evidence: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> ReportItem:
        if (self.question is None) == (self.sql is None):
            raise ValueError(f"item {self.title!r} needs either a question or sql, and not both")
        return self


class ReportFile(BaseModel):
    """A report as its YAML file describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    title: Annotated[str, Field(min_length=1, max_length=200)]
    database: Annotated[str, Field(min_length=1)]
    tenant: str = "default"
    ready_in_s: Annotated[float, Field(gt=0)] = 3600.0
    """Seconds from the run's start until everything is due: the common deadline of all items."""
    at_once: Annotated[int, Field(ge=1, le=64)] = 4
    """Items that run at the same time."""
    items: Annotated[tuple[ReportItem, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What became of one item."""

    item: ReportItem
    state: Literal["answered", "failed"]
    took_s: float
    sql: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    truncated: bool = False
    reason: str | None = None
    flow_run_id: str | None = None


def read_report(path: str | Path) -> ReportFile:
    """Read and check a report file.

    Raises:
        CallerMistake: when it is missing, not YAML, or says something that makes no sense; the
            message names the file and the place.
    """
    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CallerMistake(
            f"The report {file} cannot be read: {error.strerror}.", remedy="Check its path."
        ) from error
    except yaml.YAMLError as error:
        raise CallerMistake(f"The report {file} is not YAML: {error}.") from error
    try:
        return ReportFile.model_validate(content)
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(map(str, entry['loc'])) or 'file'}: {entry['msg']}"
            for entry in error.errors()
        )
        raise CallerMistake(f"The report {file} cannot be used: {places}.") from error


async def run_report(
    report: ReportFile, *, database: Database, ask: AskQuestion
) -> tuple[ItemOutcome, ...]:
    """Run every item; one that fails takes no other down.

    Args:
        database: where pinned statements run; through the same guard as the model's.
        ask: runs a question as a query of its own.
    """
    started = time.monotonic()
    at_once = asyncio.Semaphore(report.at_once)

    async def run(item: ReportItem) -> ItemOutcome:
        async with at_once:
            began = time.monotonic()
            # Late is better than never: an item that begins after the deadline gets one second.
            left_s = max(1.0, report.ready_in_s - (began - started))
            try:
                if item.sql is not None:
                    return _pinned(item, await database.execute(item.sql), began)
                return _asked(item, await ask(item, left_s), began)
            except HexprefectError as error:
                took_s = time.monotonic() - began
                return ItemOutcome(item, "failed", took_s, sql=item.sql, reason=str(error))

    return tuple(await asyncio.gather(*(run(item) for item in report.items)))


def report_markdown(report: ReportFile, outcomes: tuple[ItemOutcome, ...]) -> str:
    """The whole report as markdown, with what failed said first."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    lines = [f"# {markdown_text(report.title)}", ""]
    if failed:
        lines += [
            f"**Partial: {len(failed)} of {len(outcomes)} items failed:** "
            + ", ".join(markdown_text(outcome.item.title) for outcome in failed)
            + ".",
            "",
        ]
    for outcome in outcomes:
        lines += [f"## {markdown_text(outcome.item.title)}", ""]
        if outcome.item.question:
            lines += [f"*{markdown_text(outcome.item.question)}*", ""]
        if outcome.state == "failed":
            lines += [f"**Failed:** {markdown_text(outcome.reason or '')}", ""]
            continue
        lines += [*_markdown_table(outcome), ""]
        lines += ["```sql", (outcome.sql or "").replace("```", "` ` `"), "```", ""]
    return "\n".join(lines)


def summary_rows(outcomes: tuple[ItemOutcome, ...]) -> list[dict[str, Any]]:
    """One row for each item."""
    return [
        {
            "item": outcome.item.title,
            "state": outcome.state,
            "rows": len(outcome.rows) if outcome.state == "answered" else None,
            "seconds": round(outcome.took_s, 1),
            "pinned": outcome.item.sql is not None,
            "reason": outcome.reason,
            "flow run": outcome.flow_run_id,
        }
        for outcome in outcomes
    ]


def markdown_text(text: str) -> str:
    """Text of people, models and databases inside markdown: never markup."""
    escaped = text.replace("\\", "\\\\")
    for character in "`*_[]<>#|!":
        escaped = escaped.replace(character, f"\\{character}")
    return " ".join(escaped.split())


def _pinned(item: ReportItem, rows: Rows, began: float) -> ItemOutcome:
    return ItemOutcome(
        item,
        "answered",
        time.monotonic() - began,
        sql=item.sql,
        columns=rows.columns,
        rows=rows.rows,
        truncated=rows.truncated,
    )


def _asked(item: ReportItem, record: dict[str, Any], began: float) -> ItemOutcome:
    return ItemOutcome(
        item,
        "answered" if record["state"] == "answered" else "failed",
        time.monotonic() - began,
        sql=record["sql"],
        columns=tuple(record["columns"]),
        rows=tuple(tuple(row) for row in record["rows"]),
        truncated=record["truncated"],
        reason=record["error"],
        flow_run_id=record["flow_run_id"],
    )


def _markdown_table(outcome: ItemOutcome) -> list[str]:
    if not outcome.columns:
        return ["No columns."]
    header = " | ".join(markdown_text(column) for column in outcome.columns)
    lines = [f"| {header} |", f"|{' --- |' * len(outcome.columns)}"]
    for row in outcome.rows[:MOST_ROWS_SHOWN]:
        cells = ("NULL" if value is None else markdown_text(str(value)) for value in row)
        lines.append(f"| {' | '.join(cells)} |")
    if len(outcome.rows) > MOST_ROWS_SHOWN or outcome.truncated:
        lines += ["", f"The first {min(len(outcome.rows), MOST_ROWS_SHOWN)} rows."]
    return lines
