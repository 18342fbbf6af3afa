"""`text2sql/ask-many`: a CSV of questions, each a query of its own; a second run goes on."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import acreate_table_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed
from pydantic import Field

from hexprefect.errors import CallerMistake
from hexprefect.flows.text2sql import ask, tag_flow_run
from hexprefect.orchestration.answer_record import AnswerRecord
from hexprefect.orchestration.artifacts import ProgressArtifact
from hexprefect.orchestration.ask_many import (
    Answers,
    Line,
    ask_lines,
    places_of_answers,
    read_questions,
)
from hexprefect.text2sql import Progress

MOST_SHOWN = 200
"""Questions in the table artifact; the file beside the questions has all."""


def run_name() -> str:
    """The file names its flow run."""
    return f"Questions of {Path(str(flow_run.parameters.get('file', ''))).name}"


@flow(
    name="text2sql",
    flow_run_name=run_name,
    persist_result=True,
    description="Answer every question of a CSV file; what a run before has answered is kept.",
)
async def ask_many(
    file: Annotated[str, Field(min_length=1, examples=["/data/questions.csv"])],
    database: str | None = None,
    tenant: str = "default",
    slo_s: Annotated[float | None, Field(gt=0)] = None,
    at_once: Annotated[int, Field(ge=1, le=256)] = 8,
    answers: str | None = None,
    ask_failed_again: bool = True,
) -> State[dict[str, Any]]:
    """Ask every question of a file.

    Args:
        file: Path of a CSV file with a column question and, where lines differ, database, tenant,
            slo_s and evidence.
        database: Where a line names none, as for text2sql/ask.
        tenant: Where a line names none.
        slo_s: Seconds until each answer is due, where a line names none.
        at_once: Questions that are asked at the same time.
        answers: File of the answers, JSON lines; FILE.answers.jsonl by default.
        ask_failed_again: Ask again what a run before could not answer.

    Returns:
        Completed when every question has an answer; Completed with the name `Partial` when some
        have none; Failed when the file cannot be asked, or nothing was answered.
    """
    try:
        lines = await asyncio.to_thread(
            read_questions, file, database=database, tenant=tenant, slo_s=slo_s
        )
        kept_in, table = places_of_answers(file, answers)
        known = await asyncio.to_thread(Answers, kept_in)
    except CallerMistake as mistake:
        return Failed(message=str(mistake))
    await tag_flow_run(f"tenant:{tenant}", "batch")
    progress = ProgressArtifact()

    def tell(done: int, of: int) -> None:
        progress.tell(Progress("batch", f"{done} of {of} questions", done / of))

    counts = await ask_lines(
        lines,
        ask_line,
        known,
        at_once=at_once,
        ask_failed_again=ask_failed_again,
        on_progress=tell,
    )
    await progress.done()
    await asyncio.to_thread(known.write_table, lines, table)
    await acreate_table_artifact(
        outcome_rows(lines, known), description=f"What became of the questions of {file}."
    )
    answered = sum((known.of(line) or {}).get("state") == "answered" for line in lines)
    result = {**counts, "questions": len(lines), "answers": str(kept_in), "table": str(table)}
    message = f"{answered} of {len(lines)} questions have an answer: {table}"
    if answered == len(lines):
        return Completed(message=message, data=result)
    if not answered:
        return Failed(message=message, data=result)
    return Completed(name="Partial", message=message, data=result)


async def ask_line(line: Line) -> AnswerRecord:
    """Ask one question as a flow run of its own, beneath the batch's."""
    state: Any = await ask(
        question=line.question,
        database=line.database,
        tenant=line.tenant,
        slo_s=line.slo_s,
        evidence=line.evidence,
        return_state=True,
    )
    record: Any = await state.aresult(raise_on_failure=False)
    if not isinstance(record, dict):
        raise CallerMistake(f"Its flow run ended {state.name}: {state.message}")
    return record


def outcome_rows(lines: tuple[Line, ...], answers: Answers) -> list[dict[str, Any]]:
    """One row for each question, for a table."""
    rows = []
    for line in lines[:MOST_SHOWN]:
        record = answers.of(line) or {}
        rows.append(
            {
                "line": line.number,
                "question": line.question,
                "state": record.get("state", "not asked"),
                "rows": len(record.get("rows") or ()),
                "error": record.get("error"),
                "flow run": record.get("flow_run_id"),
            }
        )
    return rows
