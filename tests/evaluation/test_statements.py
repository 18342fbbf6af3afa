"""What Spider's evaluator does to a statement's text."""

from __future__ import annotations

import pytest

from hexprefect.evaluation.statements import (
    spider_order_matters,
    spider_text,
    without_distinct,
)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT DISTINCT a FROM t", "SELECT  a FROM t"),
        ("SELECT count(distinct a), 'DISTINCT' FROM t", "SELECT count( a), 'DISTINCT' FROM t"),
        ('SELECT "distinct" FROM t', 'SELECT "distinct" FROM t'),
        ("SELECT a FROM t", "SELECT a FROM t"),
        ("SELECT 1 IS DISTINCT FROM 2", "SELECT 1 IS DISTINCT FROM 2"),
        ("SELECT 'never closed", "SELECT 'never closed"),
    ],
)
def test_distinct_is_left_out_where_it_is_a_keyword(sql: str, expected: str) -> None:
    assert without_distinct(sql) == expected


def test_operators_that_were_taken_apart_are_joined() -> None:
    sql = "SELECT a FROM t WHERE a > = 1 AND b < = 2 AND c ! = 3"
    joined = "SELECT a FROM t WHERE a >= 1 AND b <= 2 AND c != 3"
    assert spider_text(sql, keep_distinct=True) == joined


def test_the_current_year_is_that_of_the_questions() -> None:
    assert spider_text("SELECT year ( curdate() ) - a", keep_distinct=True) == "SELECT 2020- a"


def test_distinct_stays_where_it_is_to_be_kept() -> None:
    sql = "SELECT DISTINCT a FROM t"
    assert spider_text(sql, keep_distinct=True) == sql
    assert "DISTINCT" not in spider_text(sql, keep_distinct=False)


@pytest.mark.parametrize(
    ("sql", "matters"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM (SELECT a FROM t order by a LIMIT 1)", True),
        ("SELECT a FROM t", False),
    ],
)
def test_order_matters_where_the_gold_says_order_by(sql: str, matters: bool) -> None:
    assert spider_order_matters(sql) == matters
