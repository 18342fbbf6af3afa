"""sqlglot's parsers, with what our dialects write and sqlglot 30 does not read.

In both dialects the count of a LIMIT is an expression, so `LIMIT 2 - n % 2` is a remainder; sqlglot
reads the `%` as PERCENT, which neither has. The guard must not refuse what the database would run.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.sqlite import SQLiteParser
from sqlglot.tokenizer_core import Token


class _SQLite(SQLiteParser):
    def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
        return super()._parse_term(parse_mod=True)


class _Postgres(PostgresParser):
    def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
        return super()._parse_term(parse_mod=True)


_parsers = {"sqlite": _SQLite, "postgres": _Postgres}


def tokenize(sql: str, dialect: str) -> list[Token]:
    """The tokens of a text.

    Raises:
        sqlglot.errors.TokenError: a quote is not closed, or a character has no meaning.
    """
    return sqlglot.tokenize(sql, dialect=dialect)


def parse(tokens: list[Token], sql: str, dialect: str) -> list[exp.Expr]:
    """The statements of a text; empty ones between semicolons are left out.

    Raises:
        sqlglot.errors.ParseError: the text is not SQL of this dialect.
        RecursionError: it is nested too deeply.
    """
    parser = _parsers[dialect](
        error_level=ErrorLevel.RAISE, dialect=sqlglot.Dialect.get_or_raise(dialect)
    )
    return [item for item in parser.parse(tokens, sql) if item is not None]
