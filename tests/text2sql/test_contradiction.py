"""What must equal two values at once becomes the things that have both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.contradiction import with_each_value
from hexprefect.text2sql.schema import Column, Schema, Table
from tests.text2sql.conftest import GoldQuestion

SONGS = Schema(
    "postgres",
    (
        Table(
            "singer",
            (Column("id", "INTEGER"), Column("name", "TEXT"), Column("gender", "TEXT")),
            primary_key=("id",),
        ),
        Table("song", (Column("singer", "INTEGER"), Column("genre", "TEXT"))),
        Table(
            "award",
            (Column("year", "INTEGER"), Column("number", "INTEGER"), Column("singer", "INTEGER")),
            primary_key=("year", "number"),
        ),
    ),
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT s.name FROM singer AS s JOIN song AS g ON g.singer = s.id "
            "WHERE g.genre = 'rock' AND g.genre = 'jazz'",
            "SELECT s.name FROM singer AS s JOIN song AS g ON g.singer = s.id "
            'WHERE g.genre = \'rock\' AND s."id" IN (SELECT s."id" FROM singer AS s '
            "JOIN song AS g ON g.singer = s.id WHERE g.genre = 'jazz')",
        ),
        # Other conditions hold for each; bare columns, parentheses, the value first.
        (
            "SELECT name, gender FROM singer AS S JOIN song ON singer = s.id "
            "WHERE (genre = 'a' AND 'b' = Genre) AND s.name <> 'x'",
            "SELECT name, gender FROM singer AS S JOIN song ON singer = s.id "
            "WHERE (genre = 'a' AND s.name <> 'x') AND S.\"id\" IN (SELECT S.\"id\" "
            "FROM singer AS S JOIN song ON singer = s.id WHERE 'b' = Genre AND s.name <> 'x')",
        ),
    ],
)
def test_each_value_has_its_query(sql: str, expected: str) -> None:
    assert with_each_value(sql, SONGS) == expected


def test_three_values_are_three_queries() -> None:
    sql = "SELECT s.id FROM singer s JOIN song g ON g.singer = s.id WHERE "
    made = with_each_value(sql + "genre = 'a' AND genre = 'b' AND genre = 'c'", SONGS)
    assert made is not None
    assert made.count("SELECT") == 3


JOINED = "FROM singer AS s JOIN song AS g ON g.singer = s.id WHERE "


@pytest.mark.parametrize(
    "sql",
    [
        # A thing's own column has one value: nothing is what was asked for.
        "SELECT name FROM singer WHERE gender = 'M' AND gender = 'F'",
        f"SELECT s.name {JOINED} s.gender = 'M' AND s.gender = 'F'",
        # No contradiction: one value, two columns, an alternative, other comparisons.
        f"SELECT s.name {JOINED} genre = 'x' AND s.name = 'y'",
        f"SELECT s.name {JOINED} genre = 'x' AND genre = 'x'",
        f"SELECT s.name {JOINED} genre = 'x' OR genre = 'y'",
        f"SELECT s.name {JOINED} genre = 'x' AND genre > 'y'",
        f"SELECT s.name {JOINED} genre = s.name AND genre = s.gender",
        # Two such columns; what is selected is of two tables, or no column; no key, one of two.
        f"SELECT s.name {JOINED} genre = 'a' AND genre = 'b' AND singer = 1 AND singer = 2",
        f"SELECT s.name, genre {JOINED} genre = 'a' AND genre = 'b'",
        f"SELECT 'yes' {JOINED} genre = 'a' AND genre = 'b'",
        "SELECT g.genre FROM song g JOIN singer s ON s.id = g.singer "
        "WHERE s.name = 'a' AND s.name = 'b'",
        "SELECT year FROM award a JOIN song g ON g.singer = a.singer "
        "WHERE genre = 'a' AND genre = 'b'",
        # What counts, groups, orders, limits, or has queries of its own.
        f"SELECT COUNT(*) {JOINED} genre = 'a' AND genre = 'b'",
        f"SELECT s.name {JOINED} genre = 'a' AND genre = 'b' GROUP BY s.name",
        f"SELECT s.name {JOINED} genre = 'a' AND genre = 'b' ORDER BY s.name",
        f"SELECT s.name {JOINED} genre = 'a' AND genre = 'b' LIMIT 3",
        f"WITH x AS (SELECT 1) SELECT s.name {JOINED} genre = 'a' AND genre = 'b'",
        f"SELECT s.name {JOINED} genre = 'a' AND genre = 'b' UNION SELECT 'x'",
        "SELECT name FROM singer",
        "(",
        "",
    ],
)
def test_what_may_mean_something_else_is_left_alone(sql: str) -> None:
    assert with_each_value(sql, SONGS) is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    with_each_value(text, SONGS)
    with_each_value(f"SELECT s.name {JOINED} genre = 'a' AND genre = {text}", SONGS)


async def test_a_customer_with_both_orders_is_found_without_a_correction(shop: Database) -> None:
    stages = []

    async def complete(prompt: Prompt) -> Completion:
        stages.append(prompt.stage)
        sql = (
            'SELECT name FROM customer AS c JOIN "order" AS o ON o.customer_id = c.customer_id '
            "WHERE o.\"Order Date\" = '2024-01-05' AND o.\"Order Date\" = '2024-02-06'"
        )
        return Completion(sql, 1, 1)

    options = AgentOptions(candidates=1, abstain=False)
    found = await answer("Who?", database=shop, complete=complete, options=options)
    assert found.rows == (("Ada",),)
    assert stages == ["candidate_generation"]
    assert [draft.by for draft in found.candidates[0].drafts] == ["model", "repair"]


def test_no_gold_statement_contradicts_itself(gold_questions: list[GoldQuestion]) -> None:
    assert [item.id for item in gold_questions if with_each_value(item.sql, item.schema)] == []
