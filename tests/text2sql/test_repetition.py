"""Each thing once where only a join repeats it; everything else stays as it was written."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Answer, Database, answer
from hexprefect.text2sql.repetition import repetition

PEOPLE = """
CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, town TEXT);
CREATE TABLE pet (id INTEGER PRIMARY KEY, person_id INTEGER REFERENCES person (id), kind TEXT);
CREATE TABLE passport (person_id INTEGER PRIMARY KEY REFERENCES person (id), number TEXT);
INSERT INTO person VALUES (1, 'Ada', 'Rome'), (2, 'Bo', 'Rome'), (3, 'Cy', 'Bern');
INSERT INTO pet VALUES (1, 1, 'cat'), (2, 1, 'dog'), (3, 2, 'cat');
INSERT INTO passport VALUES (1, 'x'), (2, 'y');
"""


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[Database]:
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(PEOPLE)
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        yield database


async def ask(database: Database, sql: str) -> Answer:
    async def complete(prompt: Prompt) -> Completion:
        return Completion(sql, 1, 1)

    options = AgentOptions(candidates=1, max_corrections=0)
    return await answer("Which?", database=database, complete=complete, options=options)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.name FROM person AS a JOIN pet AS b ON a.id = b.person_id",
        "SELECT name FROM person JOIN pet ON person.id = pet.person_id ORDER BY name",
        "SELECT P.name AS who FROM pet JOIN person p ON p.id = person_id",
    ],
)
async def test_whoever_has_two_pets_is_named_once(people: Database, sql: str) -> None:
    found = await ask(people, sql)
    assert sorted(found.rows) == [("Ada",), ("Bo",)]
    assert [draft.by for draft in found.candidates[0].drafts] == ["model", "repair"]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # Two people of one town are two, and no join repeats them.
        ("SELECT town FROM person", 3),
        ("SELECT town FROM person JOIN passport ON person.id = passport.person_id", 2),
        # What is repeated is asked for: with the other table's columns, a count, a group, a limit.
        ("SELECT name, kind FROM person JOIN pet ON person.id = person_id", 3),
        ("SELECT COUNT(name) FROM person JOIN pet ON person.id = person_id", 1),
        ("SELECT town FROM person JOIN pet ON person.id = person_id GROUP BY name, town", 2),
        ("SELECT name FROM person JOIN pet ON person.id = person_id LIMIT 2", 2),
        # DISTINCT would have no order to go by.
        ("SELECT name FROM person JOIN pet ON person.id = person_id ORDER BY pet.id", 3),
        ("SELECT name FROM person JOIN pet ON person.id = person_id UNION ALL SELECT 'Ada'", 4),
    ],
)
async def test_other_repetitions_are_left_alone(people: Database, sql: str, rows: int) -> None:
    found = await ask(people, sql)
    assert len(found.rows) == rows
    assert [draft.by for draft in found.candidates[0].drafts] == ["model"]


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    from hexprefect.text2sql.schema import Column, Schema, Table

    schema = Schema("sqlite", (Table("a", (Column("x", "TEXT"),), primary_key=("x",)),))
    repetition(text, schema)
    repetition(f"SELECT x FROM a JOIN a AS b ON {text}", schema)
