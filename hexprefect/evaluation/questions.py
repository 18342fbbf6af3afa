"""Questions with gold statements: this project's form, BIRD's and Spider's."""

from __future__ import annotations

import fnmatch
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy

from hexprefect.errors import CallerMistake

_GOLD_FIELDS = ("gold_sql", "SQL", "query", "sql")
_ID_FIELDS = ("id", "question_id")
_SUFFIXES = (".sqlite", ".db", ".duckdb")


@dataclass(frozen=True, slots=True)
class GoldQuestion:
    """A question whose right answer is known."""

    id: str
    position: int
    """In its file, counted from 0."""
    question: str
    gold: tuple[str, ...]
    """The gold statement, then the alternatives that are as good."""
    db_id: str
    evidence: str = ""
    file: str | None = None
    """Of its database, relative to the folder of databases, where the question names it."""


def read_questions(path: Path) -> tuple[GoldQuestion, ...]:
    """Read a file of one JSON object a line, or of one JSON array.

    Args:
        path: the file. Each object has `question`, `db_id` and the gold statement as `gold_sql`,
            `SQL` or `query`; and may have `id` or `question_id`, `evidence`, `gold_alternatives`
            and `db`.

    Raises:
        CallerMistake: the file cannot be read, or an entry lacks something; it is named.
    """
    questions: list[GoldQuestion] = []
    seen: dict[str, int] = {}
    for position, entry in enumerate(json_objects(path)):
        question = _question(path, position, entry)
        if question.id in seen:
            raise CallerMistake(
                f"{path}: the entries {seen[question.id] + 1} and {position + 1} have the same "
                f"id {question.id!r}.",
                remedy="Give each question an id of its own, or none.",
            )
        seen[question.id] = position
        questions.append(question)
    if not questions:
        raise CallerMistake(f"{path} has no question.", remedy="Write one JSON object a line.")
    return tuple(questions)


def choose_questions(
    questions: Sequence[GoldQuestion],
    *,
    ids: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> tuple[GoldQuestion, ...]:
    """Some of the questions, the same ones for the same arguments.

    Args:
        questions: all of them.
        ids: a pattern such as `spider_dev_*` that the ids must match.
        sample: draw this many: `random.Random(seed).sample(sorted ids, sample)`.
        seed: of the sample.
        limit: only the first so many, after all else.

    Returns:
        What remains, in the order of the file.

    Raises:
        CallerMistake: nothing remains, or there are fewer than the sample.
    """
    chosen = [item for item in questions if ids is None or fnmatch.fnmatchcase(item.id, ids)]
    if sample is not None:
        if sample > len(chosen):
            raise CallerMistake(
                f"A sample of {sample} cannot be drawn from {len(chosen)} questions.",
                remedy="Draw fewer, or widen the pattern of ids.",
            )
        drawn = set(random.Random(seed).sample(sorted(item.id for item in chosen), sample))
        chosen = [item for item in chosen if item.id in drawn]
    chosen = chosen[:limit]
    if not chosen:
        raise CallerMistake("No question is left to evaluate.", remedy="Widen the pattern of ids.")
    return tuple(chosen)


def database_url(question: GoldQuestion, databases: str) -> str:
    """The URL of a question's database.

    Args:
        question: names its database by `db_id`, and perhaps by file.
        databases: a folder that holds the question's file, `DB_ID/DB_ID.sqlite` as BIRD and Spider
            have it, or `DB_ID.sqlite` (also `.db` and `.duckdb`); or a URL with `{db_id}` in it.

    Raises:
        CallerMistake: it is nowhere there.
    """
    if "://" in databases:
        return databases.replace("{db_id}", question.db_id)
    folder = Path(databases)
    names = [f"{question.db_id}{suffix}" for suffix in _SUFFIXES]
    candidates = [
        *([folder / question.file] if question.file else []),
        *(folder / question.db_id / name for name in names),
        *(folder / name for name in names),
    ]
    for path in candidates:
        if path.is_file():
            kind = "duckdb" if path.suffix == ".duckdb" else "sqlite"
            return sqlalchemy.URL.create(kind, database=str(path.absolute())).render_as_string()
    raise CallerMistake(
        f"The database {question.db_id!r} of question {question.id!r} is not in {folder}.",
        remedy=f"Looked for {', '.join(str(path) for path in candidates[:3])} and others.",
    )


def json_objects(path: Path) -> Iterable[dict[str, Any]]:
    """The objects of a JSON Lines file, or of a file that is one JSON array.

    Raises:
        CallerMistake: it cannot be read; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CallerMistake(f"{path} cannot be read: {why}.", remedy="Check its path.") from error
    if text.lstrip().startswith("["):
        entries = list(enumerate(_parse(path, 1, text), start=1))
    else:
        # A text may hold other separators of lines, which JSON need not escape.
        numbered = enumerate(text.split("\n"), start=1)
        entries = [(at, _parse(path, at, line)) for at, line in numbered if line.strip()]
    for number, entry in entries:
        if not isinstance(entry, dict):
            raise CallerMistake(
                f"{path}, entry {number}: it is no JSON object.", remedy="Write one a line."
            )
        yield entry


def _parse(path: Path, number: int, text: str) -> Any:
    try:
        value = json.loads(text)
        # JSON can escape half of a surrogate pair, which no file and no database can keep.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise CallerMistake(
            f"{path}, line {number}, is not JSON: {error}.", remedy="Correct the line."
        ) from error


def _question(path: Path, position: int, entry: Mapping[str, Any]) -> GoldQuestion:
    gold = next((entry[name] for name in _GOLD_FIELDS if isinstance(entry.get(name), str)), None)
    found = {"question": entry.get("question"), "db_id": entry.get("db_id"), "gold_sql": gold}
    missing = [name for name, value in found.items() if not isinstance(value, str) or not value]
    if missing or gold is None:
        raise CallerMistake(
            f"{path}, entry {position + 1}, has no {' and no '.join(missing)}.",
            remedy="The gold statement may also be called SQL (BIRD) or query (Spider).",
        )
    known = next((entry[name] for name in _ID_FIELDS if entry.get(name) is not None), position)
    return GoldQuestion(
        id=str(known),
        position=position,
        question=str(entry["question"]),
        gold=(gold, *(str(item) for item in entry.get("gold_alternatives") or ())),
        db_id=str(entry["db_id"]),
        evidence=str(entry.get("evidence") or ""),
        file=str(entry["db"]) if isinstance(entry.get("db"), str) else None,
    )
