"""A column under the wrong table is put into its place where the catalogue leaves one way only."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.repair import repaired
from tests.text2sql.conftest import GoldQuestion

TABLES = """
CREATE TABLE maker (id INTEGER PRIMARY KEY, maker_name TEXT);
CREATE TABLE model (id INTEGER PRIMARY KEY, maker_id INTEGER REFERENCES maker (id), title TEXT);
CREATE TABLE "test drive" (
    id INTEGER PRIMARY KEY, model_id INTEGER REFERENCES model (id), "Driver" TEXT, stars INTEGER
);
CREATE TABLE weather (day TEXT, rain REAL);
CREATE TABLE letter (
    sender INTEGER REFERENCES maker (id), receiver INTEGER REFERENCES maker (id), text TEXT
);
INSERT INTO maker VALUES (1, 'Volta'), (2, 'Ampere');
INSERT INTO model VALUES (1, 1, 'Spark'), (2, 1, 'Arc'), (3, 2, 'Coil');
INSERT INTO "test drive" VALUES (1, 1, 'Ada', 5), (2, 3, 'Ada', 3), (3, 3, 'Bo', 4);
INSERT INTO letter VALUES (1, 2, 'Dear colleague');
"""


@pytest.fixture
async def garage(tmp_path: Path) -> Database:
    path = tmp_path / "garage.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    connection.close()
    return await Database.connect(f"sqlite:///{path}")


@pytest.mark.parametrize(
    ("wrong", "rows"),
    [
        # The owner is one key away: it is joined.
        ("SELECT title, maker_name FROM model WHERE id = 3", [("Coil", "Ampere")]),
        ("SELECT m.title FROM model AS m WHERE m.maker_name = 'Ampere'", [("Coil",)]),
        # Two keys away.
        (
            'SELECT d."Driver" FROM "test drive" AS d WHERE d.maker_name = \'Volta\'',
            [("Ada",)],
        ),
        # The query has the owner under another name.
        (
            "SELECT a.maker_name FROM model AS a JOIN maker AS b ON a.maker_id = b.id "
            "WHERE a.title = 'Arc'",
            [("Volta",)],
        ),
        # The join is on a column that one side lacks.
        (
            "SELECT b.title FROM maker AS a JOIN model AS b ON a.maker_id = b.maker_id "
            "WHERE a.maker_name = 'Ampere'",
            [("Coil",)],
        ),
        # A table is named that is in no FROM.
        ("SELECT title FROM model WHERE maker.maker_name = 'Ampere'", [("Coil",)]),
        # Another spelling of the same name, here and one key away.
        ('SELECT driver_, COUNT(*) FROM "test drive" GROUP BY driver_', [("Ada", 2), ("Bo", 1)]),
        ("SELECT title FROM model AS m WHERE m.MakerName = 'Ampere'", [("Coil",)]),
        # Beside an inner query whose bare columns are its own.
        (
            'SELECT m.Driver FROM model AS m JOIN "test drive" AS d ON d.model_id = m.id '
            'WHERE d.stars > (SELECT MIN(stars) FROM "test drive") ORDER BY d.id',
            [("Ada",), ("Bo",)],
        ),
        # In an inner query.
        (
            "SELECT maker_name FROM maker WHERE id IN (SELECT maker_id FROM model WHERE stars = 5)",
            [("Volta",)],
        ),
    ],
)
async def test_the_one_way_that_the_keys_leave_is_taken(
    garage: Database, wrong: str, rows: list[tuple[Any, ...]]
) -> None:
    async with garage:
        mended = repaired(wrong, await garage.schema())
        assert mended is not None
        assert list((await garage.execute(mended)).rows) == rows


@pytest.mark.parametrize(
    "sql",
    [
        # Nothing is misplaced.
        "SELECT maker_name FROM maker",
        # No table has it, none is reached, two ways are as short, the alias is taken.
        "SELECT horsepower FROM maker",
        "SELECT rain FROM maker",
        "SELECT l.maker_name FROM letter AS l JOIN maker AS a ON l.sender = a.id "
        "JOIN maker AS b ON l.receiver = b.id",
        "SELECT a.nothing FROM maker AS a JOIN model AS b ON a.x = b.y",
        "SELECT maker.title FROM weather AS maker",
        "SELECT moon.title FROM maker",
        "not a statement (",
        "",
    ],
)
async def test_what_is_not_clear_is_left_to_the_model(garage: Database, sql: str) -> None:
    async with garage:
        assert repaired(sql, await garage.schema()) is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    from hexprefect.text2sql.schema import Column, Schema, Table

    schema = Schema("sqlite", (Table("a", (Column("x", "TEXT"),)),))
    repaired(text, schema)
    repaired(f"SELECT {text} FROM a", schema)


class Model:
    """Writes one statement, and another when it is to correct."""

    def __init__(self, sql: str, corrected: str = "") -> None:
        self.sql = sql
        self.corrected = corrected
        self.stages: list[str] = []

    async def __call__(self, prompt: Prompt) -> Completion:
        self.stages.append(prompt.stage)
        return Completion(self.corrected if prompt.stage == "self_correction" else self.sql, 1, 1)


ONE = AgentOptions(candidates=1, abstain=False)


async def test_a_repair_saves_the_correcting_call_and_is_told_apart(garage: Database) -> None:
    model = Model("SELECT title FROM model WHERE maker_name = 'Ampere'")
    async with garage:
        found = await answer("Which?", database=garage, complete=model, options=ONE)
    assert found.rows == (("Coil",),)
    assert model.stages == ["candidate_generation"]
    [candidate] = found.candidates
    assert [draft.by for draft in candidate.drafts] == ["model", "repair"]
    assert candidate.drafts[0].error is not None
    assert candidate.drafts[1].sql == candidate.sql == found.sql
    assert candidate.corrections == 0


async def test_a_repair_that_finds_nothing_is_no_answer(garage: Database) -> None:
    model = Model(
        "SELECT title FROM model WHERE maker_name = 'Gauss'", "SELECT title FROM model LIMIT 1"
    )
    async with garage:
        found = await answer("Which?", database=garage, complete=model, options=ONE)
    assert model.stages == ["candidate_generation", "self_correction"]
    assert [draft.by for draft in found.candidates[0].drafts] == ["model", "model"]
    assert found.rows == (("Spark",),)


def test_no_gold_statement_is_changed(gold_questions: list[GoldQuestion]) -> None:
    assert [item.id for item in gold_questions if repaired(item.sql, item.schema)] == []
