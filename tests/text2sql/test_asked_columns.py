"""A column that only ranks is not shown to whoever did not ask for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.asked_columns import without_ranking_column
from tests.text2sql.conftest import GoldQuestion

COUNTED = "SELECT country, COUNT(*) FROM singer GROUP BY country ORDER BY COUNT(*) DESC LIMIT 1"


def without(sql: str, question: str) -> str | None:
    return without_ranking_column(sql, question, dialect="sqlite")


@pytest.mark.parametrize(
    ("question", "sql", "expected"),
    [
        (
            "Which country has the most singers?",
            COUNTED,
            "SELECT country FROM singer GROUP BY country ORDER BY COUNT(*) DESC LIMIT 1",
        ),
        # By its alias; a column, asked for by a word that is none of its own.
        (
            "Which country has the most singers?",
            "SELECT country, COUNT(singer) AS n FROM s GROUP BY country ORDER BY N DESC LIMIT 1",
            "SELECT country FROM s GROUP BY country ORDER BY COUNT(singer) DESC LIMIT 1",
        ),
        (
            "Who is the oldest singer?",
            "SELECT s.name, s.age FROM singer AS s ORDER BY age DESC LIMIT 1",
            "SELECT s.name FROM singer AS s ORDER BY s.age DESC LIMIT 1",
        ),
    ],
)
def test_what_only_ranks_is_left_out(question: str, sql: str, expected: str) -> None:
    assert without(sql, question) == expected


@pytest.mark.parametrize(
    ("question", "sql"),
    [
        ("Which country has the most singers, and how many?", COUNTED),
        ("Name the country with the most singers and their number.", COUNTED),
        ("Welches Land hat die meisten Sänger?", COUNTED),
        ("What is the name and age of the oldest singer?",
         "SELECT name, age FROM singer ORDER BY age DESC LIMIT 1"),
        ("Who are the top three by ASP? Give name and ASP.",
         "SELECT name, AVG(price) AS ASP FROM sale GROUP BY name ORDER BY ASP DESC LIMIT 3"),
        # In other words than the column's.
        ("Name and birthday of the youngest?",
         "SELECT name, birth_date FROM singer ORDER BY birth_date DESC LIMIT 1"),
        ("When was the most recent payment, and who made it?",
         "SELECT paid_on, payer FROM payment ORDER BY paid_on DESC LIMIT 1"),
        ("Top 10 customers by sales", "SELECT name, total FROM c ORDER BY total DESC LIMIT 10"),
        # No rank; columns that are counted off.
        ("Which countries have at least 3 singers?", COUNTED),
        ("Which country has the most singers?",
         "SELECT COUNT(*), country FROM singer GROUP BY 2 ORDER BY COUNT(*) DESC LIMIT 1"),
        # Nothing else would be left; several, or nothing, is ranked by; it is not shown.
        ("Who is the oldest?", "SELECT age FROM singer ORDER BY age DESC LIMIT 1"),
        ("Who is the oldest?", "SELECT name, age FROM singer ORDER BY age, name LIMIT 1"),
        ("Who is the oldest?", "SELECT name, age FROM singer ORDER BY age"),
        ("Who is the oldest?", "SELECT name, id FROM singer ORDER BY age LIMIT 1"),
        ("Who is the oldest?", "SELECT DISTINCT name, age FROM singer ORDER BY age LIMIT 1"),
        ("Who is the oldest?", "("),
        ("", ""),
    ],
)  # fmt: skip
def test_what_may_have_been_asked_for_stays(question: str, sql: str) -> None:
    assert without(sql, question) is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    without(text, "Who is the oldest?")
    without(f"SELECT a, {text} FROM t ORDER BY {text} LIMIT 1", "Who is the oldest?")


async def test_the_agent_answers_with_what_was_asked_for(shop: Database) -> None:
    async def complete(prompt: Prompt) -> Completion:
        return Completion(
            'SELECT name, COUNT(*) FROM customer JOIN "order" USING (customer_id) GROUP BY name '
            "ORDER BY COUNT(*) DESC LIMIT 1",
            1,
            1,
        )

    options = AgentOptions(candidates=1, abstain=False)
    found = await answer("Who bought most?", database=shop, complete=complete, options=options)
    assert found.rows == (("Ada",),)


def test_no_gold_statement_loses_a_column(gold_questions: list[GoldQuestion]) -> None:
    shown = [item for item in gold_questions if without(item.sql, "Who is the oldest?")]
    assert len(shown) >= 10, "there is nothing to lose"
    assert [item.id for item in gold_questions if without(item.sql, item.question)] == []
