"""Many questions from a CSV file: checked before the first is asked, resumable, each on its own."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hexprefect.errors import CallerMistake, HexprefectError
from hexprefect.orchestration.answer_record import AnswerRecord, ErrorKind, empty_record, failed
from hexprefect.reports.results import harmless
from hexprefect.store.queries import check_slo

COLUMNS = ("question", "database", "tenant", "slo_s", "evidence")
"""Of the file; `question` must be there, other columns are carried to the answers."""

MOST_QUESTIONS = 100_000
LONGEST_QUESTION = 4_000
_MOST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Line:
    """One question of the file."""

    number: int
    """The line of the file, counted from 1."""
    question: str
    database: str
    tenant: str
    slo_s: float | None
    evidence: str

    @property
    def key(self) -> str:
        """The same for the same question of the same database by the same tenant."""
        text = json.dumps([self.question, self.database, self.tenant, self.evidence])
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


AskLine = Callable[[Line], Awaitable[AnswerRecord]]


def read_questions(
    file: str | Path, *, database: str | None, tenant: str = "default", slo_s: float | None = None
) -> tuple[Line, ...]:
    """Read and check a CSV file with a header.

    Args:
        file: with a column `question`, and where lines differ `database`, `tenant`, `slo_s` and
            `evidence`.
        database: where a line names none.
        tenant: where a line names none.
        slo_s: seconds, where a line names none.

    Raises:
        CallerMistake: it cannot be read, or lines of it cannot be asked; each with its number.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CallerMistake(f"{path} cannot be read: {why}.", remedy="Check its path.") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = [name.strip().casefold() for name in reader.fieldnames or ()]
    if "question" not in names:
        raise CallerMistake(
            f"{path} has no column `question`.",
            remedy=f"Begin it with a line such as: {', '.join(COLUMNS)}.",
        )
    reader.fieldnames = names
    lines: list[Line] = []
    problems: list[str] = []
    try:
        for row in reader:
            if not any((value or "").strip() for value in row.values() if isinstance(value, str)):
                continue
            try:
                lines.append(_line(reader.line_num, row, database, tenant, slo_s))
            except CallerMistake as mistake:
                problems.append(f"line {reader.line_num}: {mistake}")
    except csv.Error as error:
        problems.append(f"line {reader.line_num}: {error}.")
    if len(lines) > MOST_QUESTIONS:
        problems.append(f"It has {len(lines)} questions; at most {MOST_QUESTIONS} go at once.")
    if problems:
        more = len(problems) - _MOST_SHOWN
        shown = [*problems[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        raise CallerMistake(f"{path} cannot be asked:\n" + "\n".join(f"- {one}" for one in shown))
    if not lines:
        raise CallerMistake(f"{path} has no question.", remedy="Write one on each line.")
    return tuple(lines)


class Answers:
    """The answers of a file, one JSON object on each line, appended as they come.

    Args:
        file: made with the first answer; a last line that was cut off is as none.

    Raises:
        CallerMistake: there is something else at that place.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self._known: dict[str, AnswerRecord] = {}
        for record in _json_lines(self.file):
            self._known[record["key"]] = record

    def of(self, line: Line) -> AnswerRecord | None:
        """What is known of a question."""
        return self._known.get(line.key)

    def keep(self, line: Line, record: AnswerRecord) -> None:
        """Append one; in one write, so that two at once do not mix."""
        entry = {"key": line.key, **record}
        self._known[line.key] = entry
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a+b") as out:
            out.seek(0, io.SEEK_END)
            end = out.tell()
            torn = False
            if end:
                out.seek(end - 1)
                torn = out.read(1) != b"\n"
            out.write((b"\n" if torn else b"") + json.dumps(entry, default=str).encode() + b"\n")

    def write_table(self, lines: Sequence[Line], file: str | Path) -> None:
        """Write a CSV of all questions in their order, with what became of each.

        A text that a spreadsheet would run as a formula gets a `'` before it; the file of the
        answers is exact.
        """
        written = io.StringIO()
        writer = csv.writer(written)
        writer.writerow(
            ["line", "question", "state", "rows", "sql", "error", "seconds", "met_slo", "query_id"]
        )
        for line in lines:
            record: Mapping[str, Any] = self.of(line) or {"state": "not asked"}
            rows = record.get("rows")
            writer.writerow(
                [
                    line.number,
                    harmless(line.question),
                    record["state"],
                    json.dumps(rows, ensure_ascii=False) if rows is not None else "",
                    harmless(record.get("sql") or ""),
                    harmless(record.get("error") or ""),
                    record.get("elapsed_s", ""),
                    record.get("met_slo", ""),
                    record.get("query_id") or "",
                ]
            )
        Path(file).write_bytes(written.getvalue().encode("utf-8", "replace"))


def places_of_answers(file: str | Path, answers: str | Path | None = None) -> tuple[Path, Path]:
    """Where the answers of a file of questions are kept, and their table: never in that file.

    Args:
        file: of the questions.
        answers: where its answers are to be kept; `FILE.answers.jsonl` by default.

    Raises:
        CallerMistake: the answers would be appended to the questions.
    """
    kept_in = Path(answers or f"{file}.answers.jsonl")
    taken = {Path(file).resolve(), kept_in.resolve()}
    if len(taken) < 2:
        raise CallerMistake(
            f"The answers would be written into the questions, {file}.",
            remedy="Name another file for them, or none.",
        )
    table = kept_in.with_suffix(".csv")
    while table.resolve() in taken:
        table = table.with_name(f"{kept_in.name}.{table.name}")
    return kept_in, table


async def ask_lines(
    lines: Sequence[Line],
    ask: AskLine,
    answers: Answers,
    *,
    at_once: int,
    ask_failed_again: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, int]:
    """Ask every question that has no answer yet.

    Args:
        lines: of the file; questions that stand twice are asked once.
        ask: asks one, and gives its answer record; a failure is a record, too.
        answers: of this and earlier runs.
        at_once: how many are asked at the same time.
        ask_failed_again: also those that an earlier run could not answer.
        on_progress: told how many of how many are done.

    Returns:
        How many were `answered`, `failed` and `kept` from earlier runs.
    """
    wanted = {line.key: line for line in lines}
    todo = [
        line
        for line in wanted.values()
        if (known := answers.of(line)) is None
        or (ask_failed_again and known["state"] != "answered")
    ]
    counts = {"answered": 0, "failed": 0, "kept": len(wanted) - len(todo)}
    free = asyncio.Semaphore(at_once)

    async def one(line: Line) -> None:
        async with free:
            record = await _ask_safely(line, ask)
        answers.keep(line, record)
        counts["answered" if record["state"] == "answered" else "failed"] += 1
        if on_progress is not None:
            on_progress(sum(counts.values()), len(wanted))

    if on_progress is not None:
        on_progress(counts["kept"], len(wanted))
    async with asyncio.TaskGroup() as group:
        for line in todo:
            group.create_task(one(line))
    return counts


async def _ask_safely(line: Line, ask: AskLine) -> AnswerRecord:
    try:
        return await ask(line)
    except Exception as error:
        # One question's failure, foreseen or not, is no reason to lose the others.
        record = empty_record(
            question=line.question, database=line.database, tenant=line.tenant, slo_s=line.slo_s
        )
        kind: ErrorKind = "caller" if isinstance(error, CallerMistake) else "no_answer"
        said = str(error) if isinstance(error, HexprefectError) else repr(error)
        return failed(record, said, kind)


def _line(
    number: int,
    row: Mapping[str, Any],
    database: str | None,
    tenant: str,
    slo_s: float | None,
) -> Line:
    if None in row:
        raise CallerMistake(
            "There are more fields than columns.", remedy="Put texts with commas into quotes."
        )

    def field(name: str) -> str:
        return str(row.get(name) or "").strip()

    question = field("question")
    if not question:
        raise CallerMistake("The question is empty.")
    if len(question) > LONGEST_QUESTION:
        raise CallerMistake(f"The question is longer than {LONGEST_QUESTION} characters.")
    wanted = field("database") or database
    if not wanted:
        raise CallerMistake("It names no database.", remedy="Add the column, or the parameter.")
    slo = field("slo_s")
    return Line(
        number=number,
        question=question,
        database=wanted,
        tenant=field("tenant") or tenant,
        slo_s=_seconds(slo) if slo else slo_s,
        evidence=field("evidence"),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    return check_slo(seconds)


def _json_lines(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CallerMistake(
            f"The answers in {file} cannot be read: {why}.", remedy="Name another file for them."
        ) from error
    found = []
    for line in text.split("\n"):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and "key" in record and "state" in record:
            found.append(record)
    return found
