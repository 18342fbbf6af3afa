"""A text that a column spells otherwise is found, without a call and without a guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
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
    assert respelled(statement + found_nothing, FLIGHTS) == statement + mended


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


def test_a_gold_statement_that_finds_rows_is_hardly_ever_respelt(
    gold_questions: list[GoldQuestion],
) -> None:
    changed = [item.id for item in gold_questions if item.rows and respelled(item.sql, item.schema)]
    # Such a statement is never put to it; that it would stay shows that nothing is guessed.
    assert len(changed) <= len(gold_questions) * 0.01, changed
