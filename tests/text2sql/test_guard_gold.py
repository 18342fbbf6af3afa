"""Few false alarms: every verified statement of the question set passes, with identical rows."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hexprefect.text2sql.database import Database
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.limits import Limits

DATA = Path(__file__).resolve().parents[2] / ".." / "shared" / "data"
QUESTIONS = DATA / "questions.jsonl"

pytestmark = pytest.mark.skipif(
    not QUESTIONS.is_file(), reason="the question set ../shared/data is not on this machine"
)


def questions_by_database() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    if QUESTIONS.is_file():
        for line in QUESTIONS.read_text(encoding="utf-8").splitlines():
            item = json.loads(line)
            found[item["db"]].append(item)
    return found


def raw_rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("name", sorted(questions_by_database()))
async def test_gold_statements_pass_with_identical_rows(name: str) -> None:
    path = DATA / name
    wrong = []
    async with await Database.connect(
        f"sqlite:///{path}", limits=Limits(max_rows=1_000_000, max_bytes=1_000_000_000)
    ) as database:
        for item in questions_by_database()[name]:
            for sql in (item["gold_sql"], *item["gold_alternatives"]):
                expected = raw_rows(path, sql)
                try:
                    rows = (await database.execute(sql)).rows
                except (StatementRefused, StatementFailed) as error:
                    wrong.append((item["id"], sql, str(error)))
                    continue
                if list(rows) != expected:
                    wrong.append((item["id"], sql, "other rows"))
    assert wrong == []
