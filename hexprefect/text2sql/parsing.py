"""sqlglot's parsers, with what our dialects write and sqlglot 30 does not read.

In SQLite and PostgreSQL the count of a LIMIT is an expression, so `LIMIT 2 - n % 2` is a remainder;
sqlglot reads the `%` as PERCENT, which neither has. The guard must not refuse what the database
would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel
from sqlglot.parser import Parser
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.parsers.mysql import MySQLParser
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.sqlite import SQLiteParser
from sqlglot.tokenizer_core import Token, TokenType


class _SQLite(SQLiteParser):
    def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
        return super()._parse_term(parse_mod=True)


class _Postgres(PostgresParser):
    def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
        return super()._parse_term(parse_mod=True)


_parsers: dict[str, type[Parser]] = {
    "sqlite": _SQLite,
    "postgres": _Postgres,
    "duckdb": DuckDBParser,
    "mysql": MySQLParser,
}


_NEVER_INSIDE_A_QUERY = frozenset(
    {
        TokenType.ALTER,
        TokenType.ANALYZE,
        TokenType.COMMENT,
        TokenType.COMMIT,
        TokenType.CREATE,
        TokenType.DROP,
        TokenType.EXECUTE,
        TokenType.GRANT,
        TokenType.KILL,
        TokenType.LOAD,
        TokenType.REFRESH,
        TokenType.RENAME,
        TokenType.TRUNCATE,
    }
)


def tokenize(
    sql: str, dialect: str, names: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> list[Token]:
    """The tokens of a text; reserved words that can only be names become quoted names.

    Args:
        sql: the text.
        dialect: sqlglot's name of the dialect.
        names: how the catalogue spells its names, by their case-folded form. `s.order`, and
            `alter` inside a query, mean the column when there is one of that name.

    Raises:
        sqlglot.errors.TokenError: a quote is not closed, or a character has no meaning.
    """
    tokens: list[Token] = sqlglot.tokenize(sql, dialect=dialect)
    for before, token in pairwise(tokens):
        is_keyword = token.token_type != TokenType.VAR and token.text.isidentifier()
        must_be_name = token.token_type in _NEVER_INSIDE_A_QUERY or (
            before.token_type == TokenType.DOT and is_keyword
        )
        spellings = names.get(token.text.casefold(), frozenset())
        if must_be_name and len(spellings) == 1:
            token.token_type = TokenType.IDENTIFIER
            token.text = next(iter(spellings))
    return tokens


def parse(tokens: list[Token], sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of a text; empty ones between semicolons are left out.

    Raises:
        sqlglot.errors.ParseError: the text is not SQL of this dialect.
        RecursionError: it is nested too deeply.
    """
    parser = _parsers[dialect](
        error_level=ErrorLevel.RAISE, dialect=sqlglot.Dialect.get_or_raise(dialect)
    )
    return [
        item
        for item in parser.parse(tokens, sql)
        # A comment behind the last semicolon is kept by sqlglot as a node of its own.
        if item is not None and not isinstance(item, exp.Semicolon)
    ]
