"""A text that a column spells otherwise is found, without a call and without a guess."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.mending import Mender, Tried
from hexprefect.text2sql.respelling import respelled
from hexprefect.text2sql.schema import Column, Schema, Table
from tests.text2sql.conftest import GoldQuestion

AIRPORT = Table(
    "airport",
    (
        Column("code", "TEXT", values=("AHD", "APG", "cvo")),
        Column("city", "TEXT", values=("Ardmore", "Aberdeen", "ABERDEEN", "Corvallis")),
        Column("country", "TEXT", values=("usa",)),
        Column("height", "INTEGER"),
        Column("note", "TEXT"),
    ),
)
FLIGHTS = Schema("sqlite", (AIRPORT, Table("crew", (Column("home", "TEXT", values=("Oslo",)),))))


@pytest.mark.parametrize(
    ("found_nothing", "mended"),
    [
        ("country = 'USA'", "country = 'usa'"),
        ("'Usa' = a.country", "'usa' = a.country"),
        ("country IN ('USA', 'Chad')", "country IN ('usa', 'Chad')"),
        ("city = 'CVO'", "a.\"code\" = 'cvo'"),
    ],
)
def test_a_text_gets_the_spelling_or_the_column_that_holds_it(
    found_nothing: str, mended: str
) -> None:
    statement = "SELECT height FROM airport AS a WHERE "
    made = respelled(statement + found_nothing, FLIGHTS)
    assert made is not None
    assert made.sql == statement + mended
    [asked] = made.absent
    assert asked.startswith('SELECT 1 FROM "airport" WHERE ')
    assert asked.endswith(" LIMIT 1")


@pytest.mark.parametrize(
    "condition",
    [
        "city = 'Ardmore'",  # It is there: the other conditions found nothing.
        "city = 'aberdeen'",  # Two spellings.
        "city = 'Atlantis'",  # Nowhere.
        "note = 'usa'",  # Its values are not known.
        "height = '7'",
        "country <> 'USA'",
        "city LIKE 'corvallis'",
        "city = 'oslo'",  # Of a table that is not asked.
        "a.nothing = 'usa'",
        "(",
    ],
)
def test_what_is_not_clear_stays(condition: str) -> None:
    assert respelled(f"SELECT height FROM airport AS a WHERE {condition}", FLIGHTS) is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    respelled(text, FLIGHTS)
    respelled(f"SELECT code FROM airport WHERE city = {text}", FLIGHTS)


async def test_rows_that_are_found_so_need_no_correction(shop: Database) -> None:
    stages = []

    async def complete(prompt: Prompt) -> Completion:
        stages.append(prompt.stage)
        return Completion("SELECT name FROM customer WHERE city = 'LONDON'", 1, 1)

    options = AgentOptions(candidates=1)
    found = await answer("Who lives in LONDON?", database=shop, complete=complete, options=options)
    assert (found.rows, stages) == ((("Ada",),), ["candidate_generation"])
    assert [draft.by for draft in found.candidates[0].drafts] == ["model", "repair"]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        # Beyond the rows that values are taken from, the column holds the text as it was written.
        ("city = 'Paris' AND id < 100", None),
        ("city = 'OSLO' AND id < 100", None),
        ("city IN ('OSLO', 'Rome') AND id < 100", None),
        # It holds it nowhere.
        ("city = 'BERN' AND id < 100", [("Somebody",)]),
        ("city = 'Nina' AND id < 100", [("Nina",)]),
    ],
)
async def test_a_text_that_the_database_holds_stays_whatever_was_kept_of_its_values(
    tmp_path: Path, condition: str, rows: list[tuple[str]] | None
) -> None:
    path = tmp_path / "people.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, city TEXT, name TEXT)")
        first = [(1, "oslo", "Paris"), (2, "bern", "Somebody"), (3, "roma", "Nina")]
        others = [(number, "roma", "Nobody") for number in range(4, 2_001)]
        beyond = [(2_001, "Paris", "Last"), (2_002, "OSLO", "Last")]
        file.executemany("INSERT INTO person VALUES (?, ?, ?)", [*first, *others, *beyond])
        file.commit()
    async with await Database.connect(f"sqlite:///{path}") as database:
        mender = Mender(database, await database.schema(), "Who?")
        sql = f"SELECT name FROM person WHERE {condition}"
        empty = Tried(sql, await database.execute(sql))
        assert empty.rows is not None
        assert not empty.rows.rows
        mended = await mender.mend(empty)
    found = None if mended is None or mended.rows is None else list(mended.rows.rows)
    assert found == rows


def test_a_gold_statement_that_finds_rows_is_hardly_ever_respelt(
    gold_questions: list[GoldQuestion],
) -> None:
    changed = [item.id for item in gold_questions if item.rows and respelled(item.sql, item.schema)]
    # Such a statement is never put to it; that it would stay shows that nothing is guessed.
    assert len(changed) <= len(gold_questions) * 0.01, changed
