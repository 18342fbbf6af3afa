"""SQL on several lines, for people. What runs is never what this makes."""

from __future__ import annotations

import sqlglot
from sqlglot.errors import SqlglotError

MOST_CHARACTERS = 20_000
"""Longer statements stay as they are: laying them out takes seconds."""


def format_sql(sql: str, *, dialect: str | None = None) -> str:
    """A statement laid out over lines, or as it is when the layout would change more than spaces.

    Args:
        sql: one statement.
        dialect: sqlglot's name of its dialect; its common one when it is not known.
    """
    if len(sql) > MOST_CHARACTERS:
        return sql
    try:
        [laid_out] = sqlglot.transpile(sql, read=dialect, write=dialect, pretty=True)
        same = _tokens(laid_out, dialect) == _tokens(sql, dialect)
    except (SqlglotError, ValueError, RecursionError):
        return sql
    return laid_out if same else sql


def _tokens(sql: str, dialect: str | None) -> list[tuple[object, str]]:
    """What a statement says, without its spaces, comments and the case of its keywords."""
    tokens = sqlglot.tokenize(sql, dialect=dialect)
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    quoted = {"STRING", "IDENTIFIER"}
    return [
        (
            token.token_type,
            token.text if token.token_type.name in quoted else token.text.casefold(),
        )
        for token in tokens
    ]
