"""What a query leaves in Prefect's UI: its progress, the SQL, the rows and the timeline."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)

from hexprefect.reports.markdown import markdown_text
from hexprefect.text2sql import Progress

Record = dict[str, Any]

MOST_ROWS = 200
"""Rows in the table artifact: the UI renders all of them at once."""

UPDATE_EVERY = 0.1
"""Smallest step of the progress bar that is worth a call to Prefect's API."""


class ProgressArtifact:
    """A progress bar that never holds the query up: it is updated beside it, newest value last."""

    def __init__(self) -> None:
        self._artifact: uuid.UUID | None = None
        self._shown = 0.0
        self._wanted = 0.0
        self._updating: asyncio.Task[None] | None = None

    def tell(self, progress: Progress) -> None:
        """Take note of a step."""
        self._wanted = max(self._wanted, progress.fraction)
        due = self._wanted - self._shown >= UPDATE_EVERY or self._artifact is None
        if due and (self._updating is None or self._updating.done()):
            self._updating = asyncio.get_running_loop().create_task(self._update())

    async def done(self) -> None:
        """Show the end."""
        if self._updating is not None:
            await self._updating
        self._wanted = 1.0
        await self._update()

    async def _update(self) -> None:
        self._shown = self._wanted
        if self._artifact is None:
            created: Any = await acreate_progress_artifact(
                progress=100 * self._shown, description="How far the query is."
            )
            self._artifact = created
        else:
            await aupdate_progress_artifact(self._artifact, progress=100 * self._shown)


async def create_answer_artifacts(record: Record) -> None:
    """The SQL with the question, the rows, and the timeline of the stages."""
    creating: list[Any] = [
        acreate_markdown_artifact(answer_markdown(record), description=record["question"][:200]),
        acreate_table_artifact(timeline_rows(record), description="Where its LLM calls ran."),
    ]
    if record["state"] == "answered":
        creating.append(
            acreate_table_artifact(answer_rows(record), description=_rows_description(record))
        )
    await asyncio.gather(*creating)


def answer_markdown(record: Record) -> str:
    """The question, the SQL, the verdict on the SLO, and every warning, as markdown."""
    lines = [f"### {markdown_text(record['question'])}", ""]
    if record["sql"]:
        fence = "`" * max(3, 1 + _longest_run(record["sql"]))
        lines += [f"{fence}sql", record["sql"], fence, ""]
    if record["error"]:
        lines += [f"**No answer:** {markdown_text(record['error'])}", ""]
    met = "met" if record["met_slo"] else "missed"
    if record["slo_s"] is not None:
        lines.append(
            f"{record['elapsed_s']:.1f} s of {record['slo_s']:.0f} s: the SLO was **{met}**."
        )
    lines += [f"- Warning: {markdown_text(warning)}" for warning in record["warnings"]]
    lines += [
        f"- Dropped for want of time: {markdown_text(work)}" for work in record["dropped_work"]
    ]
    return "\n".join(lines)


def answer_rows(record: Record) -> list[Record]:
    """The rows as the table artifact wants them; equal column names are numbered."""
    names: list[str] = []
    for name in record["columns"]:
        shown, number = name, 2
        while shown in names:
            shown, number = f"{name} ({number})", number + 1
        names.append(shown)
    return [dict(zip(names, row, strict=True)) for row in record["rows"][:MOST_ROWS]]


def timeline_rows(record: Record) -> list[Record]:
    """One row for each LLM call."""
    columns = (
        ("stage", "stage"),
        ("branch", "branch"),
        ("instance", "instance"),
        ("waited (s)", "waited_s"),
        ("ran (s)", "ran_s"),
        ("predicted (s)", "predicted_s"),
        ("budget (s)", "budget_s"),
        ("input tokens", "input_tokens"),
        ("of them cached", "cached_tokens"),
        ("output tokens", "output_tokens"),
        ("attempt", "attempt"),
        ("state", "state"),
    )
    return [{shown: stage[key] for shown, key in columns} for stage in record["stages"]]


def _rows_description(record: Record) -> str:
    shown = min(len(record["rows"]), MOST_ROWS)
    if record["truncated"] or shown < len(record["rows"]):
        return f"The first {shown} rows."
    return f"All {shown} rows."


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
