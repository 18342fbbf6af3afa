"""A table that is not there is left out where its columns are in one of the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.invented_tables import without_invented_tables
from hexprefect.text2sql.schema import Column, Schema, Table

STAGE = Schema(
    "sqlite",
    (
        Table("singer", (Column("id", "INTEGER"), Column("song_name", "TEXT"))),
        Table("concert", (Column("id", "INTEGER"), Column("title", "TEXT"))),
    ),
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT s.id FROM singer AS s JOIN song AS g ON g.id = s.id WHERE g.Song_Name = 'x'",
            "SELECT s.id FROM singer AS s WHERE s.\"song_name\" = 'x'",
        ),
        (
            "SELECT song.songname, t.title FROM singer AS s JOIN song ON song.x = s.id "
            "JOIN concert AS t ON t.id = s.id ORDER BY song.songname",
            'SELECT s."song_name", t.title FROM singer AS s JOIN concert AS t ON t.id = s.id '
            'ORDER BY s."song_name"',
        ),
        (
            "SELECT id FROM concert WHERE id IN "
            "(SELECT s.id FROM singer AS s JOIN song AS g ON g.x = s.id WHERE g.song_name = 'x')",
            "SELECT id FROM concert WHERE id IN "
            "(SELECT s.id FROM singer AS s WHERE s.\"song_name\" = 'x')",
        ),
        # What else stands in the ON is a condition as before.
        (
            "SELECT s.id FROM singer AS s JOIN song AS g ON (g.id = s.id AND g.song_name = 'x') "
            "AND s.id > 3 WHERE s.id < 9",
            "SELECT s.id FROM singer AS s WHERE s.id < 9 AND s.\"song_name\" = 'x' AND s.id > 3",
        ),
    ],
)
def test_its_columns_are_taken_from_where_they_are(sql: str, expected: str) -> None:
    assert without_invented_tables(sql, STAGE) == expected


@pytest.mark.parametrize(
    "sql",
    [
        # All tables are there; the first is not; a column is in two tables, in none.
        "SELECT s.id FROM singer AS s JOIN concert AS c ON c.id = s.id",
        "SELECT g.song_name FROM song AS g JOIN singer AS s ON s.id = g.id",
        "SELECT g.id FROM singer s JOIN concert c ON c.id = s.id JOIN song g ON g.id = s.id",
        "SELECT g.length FROM singer AS s JOIN song AS g ON g.id = s.id",
        # A name that says nothing: a song's is not its singer's.
        "SELECT g.title FROM concert AS c JOIN song AS g ON g.x = c.id",
        "SELECT g.song_name FROM singer s JOIN song g ON g.x = s.id JOIN concert c ON c.id = g.id",
        # It lends nothing: its rows are what was asked for, or a condition on them.
        "SELECT s.id FROM singer AS s JOIN award AS a ON a.singer = s.id",
        "SELECT s.id FROM singer AS s JOIN award AS a ON a.singer = s.id AND a.prize = 'Grammy'",
        "SELECT COUNT(*) FROM singer AS s JOIN song AS g ON g.x = s.id WHERE g.song_name = 'x'",
        "SELECT COUNT(g.song_name) FROM singer AS s JOIN song AS g ON g.x = s.id",
        "SELECT g.song_name FROM singer s JOIN song g ON g.x = s.id GROUP BY g.song_name",
        "SELECT g.song_name FROM singer AS s LEFT JOIN song AS g ON g.x = s.id",
        "SELECT g.song_name FROM singer AS s CROSS JOIN song AS g",
        "SELECT g.* FROM singer AS s JOIN song AS g ON g.x = s.id WHERE g.song_name = 'x'",
        "SELECT id FROM singer WHERE EXISTS (SELECT 1 FROM concert c JOIN award a ON a.x = c.id)",
        # Beside a query of its own, and what a WITH query is called.
        "SELECT g.song_name FROM (SELECT * FROM singer) AS s JOIN song AS g ON g.id = s.id",
        "WITH song AS (SELECT 1 AS id) SELECT s.id FROM singer AS s JOIN song ON song.id = s.id",
        "SELECT 1",
        "(",
        "",
    ],
)
def test_what_is_not_clear_is_left_to_the_model(sql: str) -> None:
    assert without_invented_tables(sql, STAGE) is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    without_invented_tables(text, STAGE)
    without_invented_tables(f"SELECT {text} FROM singer s JOIN song g ON g.id = s.id", STAGE)


async def test_the_agent_needs_no_correction(shop: Database) -> None:
    stages = []

    async def complete(prompt: Prompt) -> Completion:
        stages.append(prompt.stage)
        sql = (
            "SELECT c.name FROM customer AS c JOIN address AS a ON a.customer_id = c.customer_id "
            "WHERE a.city = 'London'"
        )
        return Completion(sql, 1, 1)

    options = AgentOptions(candidates=1, abstain=False)
    found = await answer("Who?", database=shop, complete=complete, options=options)
    assert found.rows == (("Ada",),)
    assert stages == ["candidate_generation"]
