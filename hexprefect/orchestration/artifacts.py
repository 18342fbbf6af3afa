"""What a query leaves in Prefect's UI: its progress, the SQL, the rows and the timeline."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from typing import Any

from prefect.artifacts import (
    acreate_markdown_artifact,
    acreate_progress_artifact,
    acreate_table_artifact,
    aupdate_progress_artifact,
)

from hexprefect.reports.markdown import fenced, markdown_table, markdown_text
from hexprefect.reports.numbers import plain_cell
from hexprefect.reports.sql_layout import format_sql
from hexprefect.store.words import storable
from hexprefect.text2sql import Progress

logger = logging.getLogger(__name__)

Record = dict[str, Any]

MOST_CHARACTERS = 200
"""Of a description."""

MOST_DECISIONS = 40
"""Dispatches that are explained; `hexprefect queries show` has all."""

MOST_ROWS = 200
"""Rows in the table artifact: the UI renders all of them at once."""

LONGEST_CELL = 1_000
"""Characters of a cell in the table artifact; the result has them all."""

_LARGEST_EXACT = 2**53
"""Beyond it JavaScript, and so the UI, rounds an integer."""

UPDATE_EVERY = 0.1
"""Smallest step of the progress bar that is worth a call to Prefect's API."""


class ProgressArtifact:
    """A progress bar with the step that the query is at.

    It never holds the query up: it is updated beside it, newest value last; what Prefect does not
    take is logged.
    """

    def __init__(self) -> None:
        self._artifact: uuid.UUID | None = None
        self._shown = 0.0
        self._wanted = 0.0
        self._step = "Starting"
        self._updating: asyncio.Task[None] | None = None

    def tell(self, progress: Progress) -> None:
        """Take note of a step."""
        self._wanted = max(self._wanted, progress.fraction)
        self._step = progress.message
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
        described = f"How far the query is: {self._step}"[:MOST_CHARACTERS]
        try:
            if self._artifact is None:
                created: Any = await acreate_progress_artifact(
                    progress=100 * self._shown, description=described
                )
                self._artifact = created
            else:
                await aupdate_progress_artifact(
                    self._artifact, progress=100 * self._shown, description=described
                )
        except Exception as error:
            logger.warning("The progress was not shown: %s", error)


async def create_answer_artifacts(record: Record) -> None:
    """The SQL with the question, the rows, and the timeline of the stages.

    An artifact that Prefect does not take is logged: the answer is in the store and the result.
    """
    creating: list[Any] = [
        acreate_markdown_artifact(
            storable(answer_markdown(record)),
            description=storable(record["question"][:MOST_CHARACTERS]),
        ),
        acreate_table_artifact(timeline_rows(record), description="Where its LLM calls ran."),
    ]
    if record["state"] == "answered":
        creating.append(
            acreate_table_artifact(answer_rows(record), description=_rows_description(record))
        )
    for result in await asyncio.gather(*creating, return_exceptions=True):
        if isinstance(result, Exception):
            logger.warning("An artifact of the answer was not kept: %s", result)


def answer_markdown(record: Record) -> str:
    """The question, the SQL, how sure it is, every warning, and why each call ran where it did."""
    lines = [f"### {markdown_text(record['question'])}", ""]
    if record["sql"]:
        lines += [*fenced(format_sql(record["sql"]), "sql"), ""]
    if record["error"]:
        lines += [f"**No answer:** {markdown_text(record['error'])}", ""]
    met = "met" if record["met_slo"] else "missed"
    if record["slo_s"] is not None:
        lines.append(
            f"{record['elapsed_s']:.1f} s of {record['slo_s']:.0f} s: the SLO was **{met}**."
        )
    if record["confidence"] is not None:
        said = f"{100 * record['confidence']:.0f} % of the candidates agree."
        lines += ["", f"Confidence: {said}", ""]
    elif record["state"] == "answered":
        lines += ["", "Confidence: not known, as one candidate has nothing to agree with.", ""]
    lines += [f"- Warning: {markdown_text(warning)}" for warning in record["warnings"]]
    lines += [
        f"- Dropped for want of time: {markdown_text(work)}" for work in record["dropped_work"]
    ]
    return "\n".join([*lines, *_decisions(record)])


def _decisions(record: Record) -> list[str]:
    """Each dispatch with the score of every instance; the smallest wins."""
    rows = []
    for stage in record["stages"][:MOST_DECISIONS]:
        if not stage.get("dispatch"):
            continue
        scores = ", ".join(map(_score_words, stage["dispatch"]["scores"]))
        rows.append((stage["stage"], stage["branch"] or "", stage["instance"], scores,
                     stage["dispatch"]["why"]))  # fmt: skip
    if not rows:
        return []
    columns = ("stage", "branch", "ran on", "score of each instance (weighed, t_queue)", "because")
    alpha = f"Dispatched with α = {record['alpha']:g}." if record["alpha"] is not None else ""
    return ["", "#### Where its calls went", "", alpha, "", *markdown_table(columns, rows)]


def _score_words(score: Record) -> str:
    shown = "idle" if score["score"] is None else f"{score['score']:.3f}"
    return (
        f"{score['instance']} {shown} "
        f"({score['completion_s']:.2f} s, {score['queue_delay_s']:.2f} s)"
    )


def answer_rows(record: Record) -> list[Record]:
    """The rows as the table artifact wants them; equal column names are numbered."""
    names: list[str] = []
    for name in map(storable, record["columns"]):
        shown, number = name, 2
        while shown in names:
            shown, number = f"{name} ({number})", number + 1
        names.append(shown)
    return [
        dict(zip(names, map(table_cell, row), strict=True)) for row in record["rows"][:MOST_ROWS]
    ]


def table_cell(cell: Any) -> Any:
    """A cell as Prefect can keep it and its UI shows it: exact, and not without an end."""
    cell = plain_cell(cell)
    if isinstance(cell, int) and abs(cell) > _LARGEST_EXACT:
        return str(cell)
    if isinstance(cell, list | dict):
        cell = json.dumps(cell, ensure_ascii=False)
    if not isinstance(cell, str):
        return cell
    text = storable(cell)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


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
    return [
        {**{shown: stage[key] for shown, key in columns}, "of its budget": _share(stage)}
        for stage in record["stages"]
    ]


def _share(stage: Record) -> str | None:
    """How much of its budget a call has used, waiting and running."""
    if stage["ran_s"] is None or stage["waited_s"] is None or stage["budget_s"] <= 0:
        return None
    return f"{100 * (stage['waited_s'] + stage['ran_s']) / stage['budget_s']:.0f} %"


def _rows_description(record: Record) -> str:
    shown = min(len(record["rows"]), MOST_ROWS)
    if record["truncated"] or shown < len(record["rows"]):
        return f"The first {shown} rows." if shown != 1 else "The first row."
    return {0: "No rows.", 1: "One row."}.get(shown, f"All {shown} rows.")
