"""Statements that somebody else predicted, read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hexprefect.errors import CallerMistake
from hexprefect.evaluation.questions import GoldQuestion, json_objects

_BIRD_SEPARATOR = "\t----- bird -----\t"
_SQL_FIELDS = ("sql", "predicted_sql", "prediction", "SQL", "query")
_ID_FIELDS = ("id", "question_id")


def read_predictions(path: Path, questions: Sequence[GoldQuestion]) -> dict[str, str | None]:
    """Predicted statements by the ids of their questions.

    Args:
        path: JSON lines of `id` and `sql`; BIRD's JSON object, whose keys count the questions and
            whose texts may name the database behind the statement; or one statement a line
            (`.sql`, `.txt`), as Spider has it, of which a tab and a database may follow.
        questions: all of the file of questions, for files that count them.

    Returns:
        None where a question has an empty prediction; questions without any are left out.

    Raises:
        CallerMistake: the file cannot be read, or names none of the questions.
    """
    by_id = {question.id for question in questions}
    by_position = {str(question.position): question.id for question in questions}
    if path.suffix.lower() in (".sql", ".txt"):
        # A statement may hold other separators of lines.
        lines = _text(path).removesuffix("\n").split("\n")
        found = {str(number): line.split("\t")[0] for number, line in enumerate(lines)}
        counted = True
    elif (whole := _as_object(path)) is not None:
        found = {key: _statement_of_bird(value) for key, value in whole.items()}
        # BIRD counts from 0 in the order of the file, whatever the questions' own ids are.
        counted = set(found) <= {str(number) for number in range(len(found))}
    else:
        found = _one_each(path, [_pair(path, entry) for entry in json_objects(path)])
        counted = False
    known = {
        (by_position.get(key) if counted else key): sql.strip().rstrip(";") or None
        for key, sql in found.items()
    }
    predictions = {key: sql for key, sql in known.items() if key is not None and key in by_id}
    if not predictions:
        raise CallerMistake(
            f"{path} has no prediction for any of the questions.",
            remedy='Write lines such as {"id": …, "sql": …} with the ids of the questions.',
        )
    return predictions


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise CallerMistake(f"{path} cannot be read: {why}.", remedy="Check its path.") from error


def _as_object(path: Path) -> dict[str, Any] | None:
    """The file as one JSON object; None when it is lines of them, or an array."""
    try:
        whole = json.loads(_text(path))
        json.dumps(whole, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CallerMistake(
            f"{path} holds half of a surrogate pair.", remedy="Correct the text."
        ) from error
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(whole, dict) and any(name in whole for name in _ID_FIELDS)
    return whole if isinstance(whole, dict) and not is_line else None


def _statement_of_bird(value: object) -> str:
    return value.split(_BIRD_SEPARATOR)[0] if isinstance(value, str) else ""


def _one_each(path: Path, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, sql in pairs:
        if found.setdefault(key, sql) != sql:
            raise CallerMistake(
                f"{path} has two different predictions for {key!r}.", remedy="Keep one of them."
            )
    return found


def _pair(path: Path, entry: Mapping[str, Any]) -> tuple[str, str]:
    key = next((entry[name] for name in _ID_FIELDS if entry.get(name) is not None), None)
    if key is None:
        raise CallerMistake(
            f"{path} has an entry without an id: {str(dict(entry))[:80]}.",
            remedy='Write lines such as {"id": …, "sql": …}.',
        )
    sql = next((entry[name] for name in _SQL_FIELDS if isinstance(entry.get(name), str)), "")
    return str(key), sql
