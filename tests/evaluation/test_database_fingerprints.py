"""A database is known again by its content, whatever its file's dates say."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hexprefect.evaluation import database_fingerprints as fingerprints
from hexprefect.evaluation.database_fingerprints import database_fingerprints, file_fingerprint
from hexprefect.evaluation.execution import Executor
from hexprefect.evaluation.questions import GoldQuestion


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(sql)
        connection.commit()


@pytest.mark.parametrize("is_large", [False, True])
def test_only_what_is_in_a_file_counts(
    school: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    path = school / "school" / "school.sqlite"
    if is_large:
        monkeypatch.setattr(fingerprints, "_READ_WHOLE", 4_096)
    before = file_fingerprint(path)
    os.utime(path, (0, 0))
    assert file_fingerprint(path) == before
    change(path, "UPDATE student SET age = age + 1 WHERE id = 2")
    assert file_fingerprint(path) != before


def test_rows_that_stand_in_the_log_count(school: Path) -> None:
    path = school / "school" / "school.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = wal")
        connection.commit()
        before = file_fingerprint(path)
        connection.execute("DELETE FROM grade")
        connection.commit()
        assert file_fingerprint(path) != before


async def test_each_database_has_one_by_the_name_that_its_questions_give_it(
    school: Path, school_url: str
) -> None:
    named = GoldQuestion("a", 0, "?", ("SELECT 1",), "school", file="some/where.sqlite")
    other = GoldQuestion("b", 1, "?", ("SELECT 1",), "school")
    async with Executor() as executor:
        found = await database_fingerprints(
            (named, other), {"a": school_url, "b": school_url}, executor
        )
    digest = file_fingerprint(school / "school" / "school.sqlite")
    assert found == {"some/where.sqlite": digest, "school": digest}
