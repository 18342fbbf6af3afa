"""What must equal two values at once becomes the things that have both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexprefect.completion import Completion, Prompt
from hexprefect.text2sql import AgentOptions, Database, answer
from hexprefect.text2sql.contradiction import intersected
from tests.text2sql.conftest import GoldQuestion


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "SELECT a FROM t WHERE b = 'x' AND b = 'y'",
            "SELECT a FROM t WHERE b = 'x' INTERSECT SELECT a FROM t WHERE b = 'y'",
        ),
        (
            "SELECT t.a FROM t JOIN u ON t.i = u.i WHERE u.b = 1 AND c > 2 AND 2 = U.B",
            "SELECT t.a FROM t JOIN u ON t.i = u.i WHERE u.b = 1 AND c > 2 INTERSECT "
            "SELECT t.a FROM t JOIN u ON t.i = u.i WHERE c > 2 AND 2 = U.B",
        ),
        (
            "SELECT a FROM t WHERE b = 'x' AND b = 'y' AND b = 'z'",
            "SELECT a FROM t WHERE b = 'x' INTERSECT SELECT a FROM t WHERE b = 'y' "
            "INTERSECT SELECT a FROM t WHERE b = 'z'",
        ),
    ],
)
def test_each_value_has_its_query(sql: str, expected: str) -> None:
    assert intersected(sql, dialect="sqlite") == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t WHERE b = 'x' AND c = 'y'",
        "SELECT a FROM t WHERE b = 'x' AND b = 'x'",
        "SELECT a FROM t WHERE b = 'x' OR b = 'y'",
        "SELECT a FROM t WHERE b = 'x' AND b > 'y'",
        "SELECT a FROM t WHERE b = c AND b = d",
        # Two such columns; and what counts, groups, orders or limits.
        "SELECT a FROM t WHERE b = 1 AND b = 2 AND c = 1 AND c = 2",
        "SELECT COUNT(*) FROM t WHERE b = 1 AND b = 2",
        "SELECT a FROM t WHERE b = 1 AND b = 2 GROUP BY a",
        "SELECT a FROM t WHERE b = 1 AND b = 2 ORDER BY a",
        "SELECT a FROM t WHERE b = 1 AND b = 2 LIMIT 3",
        "SELECT a FROM t",
        "(",
        "",
    ],
)
def test_what_may_mean_something_else_is_left_alone(sql: str) -> None:
    assert intersected(sql, dialect="sqlite") is None


@given(st.text(max_size=80))
def test_no_text_of_a_model_makes_it_fail(text: str) -> None:
    intersected(text, dialect="sqlite")
    intersected(f"SELECT a FROM t WHERE b = 1 AND b = {text}", dialect="sqlite")


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
    assert [q.id for q in gold_questions if intersected(q.sql, dialect=q.schema.dialect)] == []
