"""Tables with a key between them are joined by it; whatever else may be meant is left alone."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Answer, Database, answer
from hexprefect.text2sql.key_joins import joined_by_keys
from hexprefect.text2sql.schema import Column, ForeignKey, Schema, Table
from tests.text2sql.conftest import GoldQuestion

TABLES = """
CREATE TABLE country (id INTEGER PRIMARY KEY, name TEXT, continent INTEGER);
CREATE TABLE singer (
    id INTEGER PRIMARY KEY, name TEXT, country INTEGER REFERENCES country (id), age INTEGER
);
CREATE TABLE concert (id INTEGER PRIMARY KEY, title TEXT, year INTEGER);
CREATE TABLE on_stage (
    singer INTEGER REFERENCES singer (id), concert INTEGER REFERENCES concert (id), minutes INTEGER
);
CREATE TABLE label (id INTEGER PRIMARY KEY, country INTEGER REFERENCES country (id));
CREATE TABLE letter (
    sender INTEGER REFERENCES singer (id), receiver INTEGER REFERENCES singer (id), year INTEGER
);
INSERT INTO country VALUES (1, 'France', 2), (2, 'Chile', 3), (3, 'Kenya', 1);
INSERT INTO singer VALUES (1, 'Ada', 1, 30), (2, 'Bo', 2, 40), (3, 'Cy', 2, 50);
INSERT INTO concert VALUES (1, 'Spring', 2020), (2, 'Autumn', 2021), (3, 'Winter', 2022);
INSERT INTO on_stage VALUES (1, 2, 5), (3, 1, 10), (3, 2, 20);
INSERT INTO label VALUES (1, 2);
INSERT INTO letter VALUES (1, 2, 30);
"""


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Database]:
    path = tmp_path / "stage.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    connection.close()
    async with await Database.connect(f"sqlite:///{path}") as database:
        yield database


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # The other column of the wrong pair.
        (
            "SELECT T1.name FROM singer AS T1 JOIN country AS T2 ON T1.country = T2.name "
            "WHERE T2.name = 'France'",
            [("Ada",)],
        ),
        (
            "SELECT T1.name FROM country AS T1 JOIN singer AS T2 ON T1.continent = T2.country "
            "WHERE T2.age > 45",
            [("Chile",)],
        ),
        # Without aliases, bare columns, the old way to join, one condition among others.
        ("SELECT age FROM singer JOIN country ON age = continent AND 'Kenya' <> 'x'", None),
        ("SELECT age FROM singer, country WHERE singer.id = country.id AND age < 35", [(30,)]),
        # Two keys that mean other things: the table between them is joined.
        (
            "SELECT s.name FROM singer AS s JOIN concert AS c ON s.id = c.id "
            "WHERE c.title = 'Autumn' ORDER BY s.name",
            [("Ada",), ("Cy",)],
        ),
        (
            "SELECT title FROM singer s JOIN country k ON s.country = k.id "
            "LEFT JOIN label l ON l.country = k.id JOIN concert c ON c.id = s.id "
            "WHERE k.name = 'France'",
            [("Autumn",)],
        ),
        # In an inner query.
        (
            "SELECT name FROM country WHERE id IN (SELECT k.id FROM country AS k "
            "JOIN singer AS s ON k.continent = s.country WHERE s.name = 'Bo')",
            [("Chile",)],
        ),
    ],
)
async def test_the_key_that_the_catalogue_declares_is_taken(
    stage: Database, sql: str, rows: list[tuple[Any, ...]] | None
) -> None:
    joined = joined_by_keys(sql, await stage.schema())
    assert joined is not None
    found = await stage.execute(joined)
    assert rows is None or list(found.rows) == rows
    assert joined_by_keys(joined, await stage.schema()) is None


@pytest.mark.parametrize(
    "sql",
    [
        # By the key already, also beside a further condition.
        "SELECT 1 FROM singer JOIN country ON singer.country = country.id",
        "SELECT 1 FROM singer s JOIN country c ON s.country = c.id AND s.age = c.continent",
        # Two columns that refer to the same thing.
        "SELECT 1 FROM singer JOIN label ON singer.country = label.country",
        # Two keys between the tables: nobody knows which one is meant.
        "SELECT 1 FROM singer JOIN letter ON singer.age = letter.year",
        # A table beside itself, an alternative, another comparison, a computed side.
        "SELECT 1 FROM singer a JOIN singer b ON a.age = b.id",
        "SELECT 1 FROM singer s JOIN country c ON s.age = c.continent OR s.country = c.id",
        "SELECT 1 FROM singer s JOIN country c ON s.age > c.continent",
        "SELECT 1 FROM singer s JOIN country c ON s.age + 1 = c.continent",
        # No key leads from one to the other, or several ways do.
        "SELECT 1 FROM concert JOIN country ON concert.year = country.continent",
        "SELECT 1 FROM letter JOIN country ON letter.sender = country.id",
        # The key joins them already, however that is written; the equality is a further filter.
        "SELECT 1 FROM singer s JOIN country c USING (id) WHERE s.age = c.continent",
        "SELECT 1 FROM singer s NATURAL JOIN country c WHERE s.age = c.continent",
        "SELECT 1 FROM singer s JOIN country c ON (s.country = c.id) WHERE s.age = c.continent",
        "SELECT 1 FROM singer s JOIN country c ON (s.country = c.id AND s.age > 5) "
        "AND s.age = c.continent",
        "SELECT 1 FROM singer s, country c WHERE (s.country = c.id AND s.age = c.continent)",
        "SELECT 1 FROM singer s JOIN country c ON s.country IN (c.id) WHERE s.age = c.continent",
        "SELECT 1 FROM singer s JOIN country c ON CAST(s.country AS TEXT) = CAST(c.id AS TEXT) "
        "WHERE s.age = c.continent",
        # Another singer, of the country that the first one's key leads to.
        "SELECT 1 FROM singer a JOIN country c ON a.country = c.id JOIN singer b "
        "ON b.age = c.continent",
        # Two things of one country are no pair.
        "SELECT 1 FROM singer s JOIN label l ON s.id = l.id",
        # A query of the statement's own has the name.
        "WITH Singer AS (SELECT id AS country, age FROM concert) "
        "SELECT 1 FROM singer s JOIN country c ON s.age = c.continent",
        "WITH on_stage AS (SELECT 1) SELECT s.name FROM singer s JOIN concert c ON s.id = c.id",
        # A further table would be shown.
        "SELECT * FROM singer s JOIN concert c ON s.id = c.id",
        # What is joined outside keeps its rows.
        "SELECT 1 FROM singer s LEFT JOIN concert c ON s.id = c.id",
        # No keys: years may be compared.
        "SELECT 1 FROM singer s JOIN concert c ON s.age = c.year",
        # The table between is there already.
        "SELECT 1 FROM singer s JOIN on_stage o ON o.singer = s.id JOIN concert c ON c.id = s.id",
        "SELECT name FROM singer",
        "not a statement (",
        "",
    ],
)
async def test_whatever_else_may_be_meant_is_left_alone(stage: Database, sql: str) -> None:
    assert joined_by_keys(sql, await stage.schema()) is None


def test_a_guessed_key_changes_no_join() -> None:
    guess = ForeignKey(("maker",), "maker", ("id",), is_guess=True)
    maker = Table("maker", (Column("id", "INTEGER"), Column("name", "TEXT")), primary_key=("id",))
    model = Table("model", (Column("maker", "TEXT"),), foreign_keys=(guess,))
    schema = Schema("sqlite", (maker, model))
    assert joined_by_keys("SELECT 1 FROM model a JOIN maker b ON a.maker = b.name", schema) is None


def test_columns_of_one_name_may_be_a_key_that_nobody_declared() -> None:
    def to_region() -> tuple[ForeignKey, ...]:
        return (ForeignKey(("region",), "region", ("id",)),)

    columns = (Column("customer_id", "INTEGER"), Column("region", "INTEGER"))
    key = ("customer_id",)
    schema = Schema(
        "sqlite",
        (
            Table("region", (Column("id", "INTEGER"),), primary_key=("id",)),
            Table("customer", columns, primary_key=key, foreign_keys=to_region()),
            Table("profile", columns, primary_key=key, foreign_keys=to_region()),
        ),
    )
    sql = "SELECT 1 FROM customer JOIN profile ON customer.customer_id = profile.customer_id"
    assert joined_by_keys(sql, schema) is None


def test_columns_of_one_name_may_be_what_was_meant() -> None:
    city = Column("city", "TEXT")
    customer = Table("customer", (Column("id", "INTEGER"), city), primary_key=("id",))
    key = ForeignKey(("customer_id",), "customer", ("id",))
    order = Table("purchase", (Column("customer_id", "INTEGER"), city), foreign_keys=(key,))
    schema = Schema("sqlite", (customer, order))
    sql = "SELECT 1 FROM customer c JOIN purchase p ON c.city = p.city"
    assert joined_by_keys(sql, schema) is None


async def ask(database: Database, sql: str) -> Answer:
    async def complete(prompt: Prompt) -> Completion:
        return Completion(sql, 1, 1)

    options = AgentOptions(candidates=1, max_corrections=0, abstain=False)
    return await answer("Which?", database=database, complete=complete, options=options)


async def test_the_agent_keeps_both_drafts(stage: Database) -> None:
    sql = "SELECT s.name FROM singer s JOIN country c ON s.id = c.id WHERE c.name = 'France'"
    found = await ask(stage, sql)
    assert found.rows == (("Ada",),)
    assert [draft.by for draft in found.candidates[0].drafts] == ["model", "repair"]


async def test_a_join_that_then_finds_nothing_stays_as_it_was(stage: Database) -> None:
    sql = "SELECT s.name FROM singer s JOIN country c ON s.id = c.id WHERE c.name = 'Kenya'"
    found = await ask(stage, sql)
    assert found.rows == (("Cy",),)
    assert [draft.by for draft in found.candidates[0].drafts] == ["model"]


async def test_a_table_keeps_the_name_that_the_statement_gives_it(
    postgres_shop: Database,
) -> None:
    """To PostgreSQL `T1` is t1, and `"T1"` is nothing."""
    sql = (
        'SELECT T1.name FROM customer AS T1 JOIN "order" AS T2 ON T1.customer_id = T2.order_id '
        "WHERE T2.amount > 25"
    )
    joined = joined_by_keys(sql, await postgres_shop.schema())
    assert joined is not None
    assert (await postgres_shop.execute(joined)).rows == (("Grace",),)


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    key = (ForeignKey(("x",), "b", ("y",)),)
    schema = Schema(
        "sqlite",
        (
            Table("a", (Column("x", "TEXT"),), foreign_keys=key),
            Table("b", (Column("y", "TEXT"), Column("z", "TEXT"))),
        ),
    )
    joined_by_keys(text, schema)
    joined_by_keys(f"SELECT 1 FROM a JOIN b ON a.x = b.z AND {text}", schema)


def test_no_gold_statement_joins_otherwise(gold_questions: list[GoldQuestion]) -> None:
    changed = [item.id for item in gold_questions if joined_by_keys(item.sql, item.schema)]
    assert changed == []
