"""A small school with questions, and a model that says what a test has written down for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexprefect.completion import Completion, Prompt
from hexprefect.evaluation.records import CallRecord, QuestionRecord, Verdict

SCHOOL = """
CREATE TABLE student (id INTEGER PRIMARY KEY, name TEXT, age INTEGER, home TEXT);
CREATE TABLE grade (student_id INTEGER REFERENCES student (id), subject TEXT, points REAL);
INSERT INTO student VALUES
    (1, 'Ada', 12, 'Bath'), (2, 'Bea', 13, 'Bath'), (3, 'Cid', 12, 'York'), (4, 'Dan', 14, NULL);
INSERT INTO grade VALUES
    (1, 'art', 9.5), (1, 'maths', 8.0), (2, 'art', 7.0), (3, 'maths', 8.0), (3, 'art', 7.0);
"""


@pytest.fixture
def school(tmp_path: Path) -> Path:
    """A folder of databases as BIRD and Spider have it, with one database: `school`."""
    folder = tmp_path / "databases"
    (folder / "school").mkdir(parents=True)
    connection = sqlite3.connect(folder / "school" / "school.sqlite")
    connection.executescript(SCHOOL)
    connection.close()
    return folder


@pytest.fixture
def school_url(school: Path) -> str:
    return f"sqlite:///{school / 'school' / 'school.sqlite'}"


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, list[dict[str, Any]]], Path]:
    """Writes JSON lines and gives their file."""

    def write(name: str, entries: list[dict[str, Any]]) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        return path

    return write


class ScriptedModel:
    """Answers a prompt with the first text whose key stands in the question's message.

    A text of several parts gives them one after the other, the last for ever.
    """

    def __init__(self, script: dict[str, list[str]]) -> None:
        self.script = script
        self.prompts: list[Prompt] = []

    async def __call__(self, prompt: Prompt) -> Completion:
        self.prompts.append(prompt)
        asked = prompt.messages[-1].content
        texts = next(texts for key, texts in self.script.items() if key in asked)
        text = texts.pop(0) if len(texts) > 1 else texts[0]
        return Completion(text, input_tokens=100, output_tokens=10, cached_tokens=60, ran_s=0.5)


@pytest.fixture
def scripted() -> type[ScriptedModel]:
    return ScriptedModel


@pytest.fixture
def record() -> Callable[..., QuestionRecord]:
    """Makes a record, right by every measure unless it is told otherwise."""

    def make(key: str, *, right: bool = True, **values: Any) -> QuestionRecord:
        verdict = Verdict(
            bird_ex=right,
            bird_soft_f1=float(right),
            spider_execution=right,
            spider_keep_distinct=right,
            cause="right" if right else "wrong columns",
        )
        known: dict[str, Any] = {
            "db_id": "school",
            "question": f"Question {key}?",
            "gold": "SELECT 1",
            "joins": 0,
            "nesting": 0,
            "state": "answered",
            "sql": "SELECT 1",
            "verdict": verdict,
            "calls": (CallRecord(stage="candidate_generation", input_tokens=10),),
        }
        return QuestionRecord(id=key, **{**known, **values})

    return make
