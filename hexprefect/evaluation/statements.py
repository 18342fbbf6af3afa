"""What Spider's evaluator does to the text of a statement before it runs it."""

from __future__ import annotations

import re
from itertools import pairwise

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

_SPACED_OPERATORS = {"> =": ">=", "< =": "<=", "! =": "!="}
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_YEAR_OF_THE_QUESTIONS = "2020"


def spider_text(sql: str, *, keep_distinct: bool, dialect: str = "sqlite") -> str:
    """The statement as Spider's evaluator runs it.

    Operators that a tokenizer took apart are joined and `YEAR(CURDATE())` becomes 2020. Unless
    `keep_distinct`, every DISTINCT is left out: by default the original forgives one too many or
    too few. Text that cannot be read as SQL stays as it is, and fails when it is run.
    """
    for spaced, joined in _SPACED_OPERATORS.items():
        sql = sql.replace(spaced, joined)
    sql = _CURRENT_YEAR.sub(_YEAR_OF_THE_QUESTIONS, sql)
    return sql if keep_distinct else without_distinct(sql, dialect)


def without_distinct(sql: str, dialect: str = "sqlite") -> str:
    """Leave out the keyword DISTINCT, also within aggregates; `IS DISTINCT FROM` stays."""
    try:
        tokens = sqlglot.tokenize(sql, dialect=dialect)
    except SqlglotError:
        return sql
    kept: list[str] = []
    position = 0
    for token, after in pairwise([*tokens, None]):
        assert token is not None, "only the last one is followed by nothing"
        is_comparison = after is not None and after.token_type == TokenType.FROM
        if token.token_type == TokenType.DISTINCT and not is_comparison:
            kept.append(sql[position : token.start])
            position = token.end + 1
    return "".join([*kept, sql[position:]])


def spider_order_matters(gold_sql: str) -> bool:
    """Whether Spider's evaluator compares rows in their order: the gold's text says ORDER BY."""
    return "order by" in gold_sql.lower()
