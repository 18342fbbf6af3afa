"""The guard: one statement that only reads, proven on its whole syntax tree.

A statement passes when sqlglot reads it as exactly one query, nothing anywhere in its tree writes,
locks, sets or leaves the database, every table is in the reflected catalogue (or a WITH above it),
and every function is allowed for the dialect. What then runs is not the text that came in but the
text regenerated from the checked tree, so that a comment or an odd byte cannot mean one thing to
the guard and another to the database. Every refusal names its rule and what would pass.

Tables are written as the catalogue spells them, and one of which only some columns may be read is
written as a query of these columns: see `hexprefect.text2sql.resolution`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from hexprefect.text2sql.columns import check_columns
from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.functions import check_function
from hexprefect.text2sql.parsing import parse, tokenize
from hexprefect.text2sql.resolution import (
    check_hidden_columns,
    hide_columns,
    quote_from_catalogue,
    resolve_tables,
    spell_tables,
)
from hexprefect.text2sql.schema import Schema
from hexprefect.text2sql.type_names import check_type

MAX_CHARACTERS = 50_000
"""Longer than any query a person or a model writes; parsing time grows with it."""

_QUERIES = (exp.Select, exp.SetOperation, exp.Values, exp.Subquery)
_FIRST_WORDS = frozenset(
    {TokenType.SELECT, TokenType.WITH, TokenType.VALUES, TokenType.L_PAREN, TokenType.FROM}
)
_READ_ONLY = "Write one SELECT, VALUES or WITH … SELECT."

_FORBIDDEN_NODES: tuple[tuple[type[exp.Expr], str, str], ...] = (
    (exp.DML, "data-changing", "INSERT, UPDATE, DELETE or MERGE, also inside WITH"),
    (exp.DDL, "data-changing", "a statement that defines or changes objects"),
    (exp.Into, "select-into", "SELECT … INTO writes a table"),
    (exp.Lock, "locking", "FOR UPDATE and FOR SHARE lock rows"),
    (exp.Command, "query-only", "a command that is not a query"),
    (exp.Copy, "query-only", "COPY reads or writes files"),
    (exp.Attach, "query-only", "ATTACH opens another database"),
    (exp.Detach, "query-only", "DETACH changes the session"),
    (exp.Pragma, "query-only", "PRAGMA changes the session"),
    (exp.Set, "query-only", "SET changes the session"),
    (exp.Use, "query-only", "USE changes the session"),
    (exp.Kill, "query-only", "KILL ends other sessions"),
    (exp.Describe, "query-only", "EXPLAIN and DESCRIBE can run what they explain"),
    (exp.Transaction, "query-only", "BEGIN would start a transaction"),
    (exp.Commit, "query-only", "COMMIT would end the read-only transaction"),
    (exp.Rollback, "query-only", "ROLLBACK would end the read-only transaction"),
    (exp.Drop, "data-changing", "DROP removes objects"),
    (exp.Alter, "data-changing", "ALTER changes objects"),
    (exp.TruncateTable, "data-changing", "TRUNCATE removes rows"),
    (exp.Placeholder, "no-parameters", "a placeholder has no value here"),
    (exp.Parameter, "no-parameters", "a parameter has no value here"),
    (exp.SessionParameter, "no-parameters", "a session variable is not data"),
    (exp.Operator, "function", "an operator named by its schema can be anything"),
    (exp.Hint, "no-hints", "an optimizer hint steers the server"),
    (exp.Directory, "query-only", "a directory is not a table"),
    (exp.NextValueFor, "data-changing", "NEXT VALUE FOR advances a sequence"),
    (exp.Summarize, "query-only", "SUMMARIZE is not a SELECT"),
    (exp.Show, "query-only", "SHOW tells of the server"),
)


@dataclass(frozen=True, slots=True)
class CheckedStatement:
    """A statement that passed, as it will run."""

    sql: str
    tables: tuple[str, ...]
    """Full names of the catalogue's tables it reads, sorted."""
    is_ordered: bool
    """Whether its outermost query has an ORDER BY."""


def check(sql: str, *, dialect: str, schema: Schema | None = None) -> CheckedStatement:
    """Let a statement through, regenerated, or refuse it.

    Args:
        sql: the statement as a model or a person wrote it.
        dialect: `sqlite`, `postgres`, `duckdb` or `mysql`.
        schema: the catalogue that table names must be in; None leaves that to the database.

    Raises:
        StatementRefused: with the rule that was broken and what would pass.
    """
    names = {} if schema is None else schema.spellings
    tree = _parse_one(sql, dialect, names)
    if schema is not None:
        quote_from_catalogue(tree, dialect, schema)
    is_restricted = schema is not None and schema.is_restricted
    _inspect(tree, dialect, is_restricted=is_restricted)
    found = resolve_tables(tree, dialect, schema)
    if schema is not None:
        check_hidden_columns(tree, dialect, found)
        spell_tables(found, dialect)
        hide_columns(found, dialect)
    generated = _generate(tree, dialect)
    # The generated text is what runs, so it is what must pass.
    written = _parse_one(generated, dialect)
    _inspect(written, dialect, is_restricted=is_restricted)
    again = resolve_tables(written, dialect, schema)
    if schema is not None and dialect == "postgres":
        check_columns(written, schema)
    return CheckedStatement(
        generated, tuple(sorted({item.name for item in again})), _is_ordered(tree)
    )


def _inspect(tree: exp.Expr, dialect: str, *, is_restricted: bool) -> None:
    if not isinstance(tree.unnest(), _QUERIES):
        raise StatementRefused(
            "query-only", f"{tree.key.upper()} is not a query.", remedy=_READ_ONLY
        )
    for node in tree.walk():
        _check_node(node)
        if isinstance(node, exp.Func):
            check_function(node, dialect)
        if dialect == "postgres":
            check_type(node, is_restricted=is_restricted)


def _parse_one(
    sql: str, dialect: str, names: Mapping[str, frozenset[str]] = MappingProxyType({})
) -> exp.Expr:
    if len(sql) > MAX_CHARACTERS:
        raise StatementRefused(
            "length",
            f"the statement has {len(sql)} characters.",
            remedy=f"At most {MAX_CHARACTERS} pass.",
        )
    if "\x00" in sql:
        raise StatementRefused(
            "characters", "the statement holds a NUL character.", remedy="Leave it out."
        )
    with _malformed_is_refused(dialect):
        tokens = tokenize(sql, dialect, names)
        _check_outline(tokens)
        statements = parse(tokens, sql, dialect)
    if len(statements) != 1:
        raise StatementRefused(
            "one-statement",
            f"there are {len(statements)} statements.",
            remedy="Write exactly one, with nothing after its semicolon.",
        )
    return statements[0]


def _check_outline(tokens: list[Token]) -> None:
    if not tokens:
        raise StatementRefused("one-statement", "there is no statement.", remedy=_READ_ONLY)
    kinds = [token.token_type for token in tokens]
    if TokenType.SEMICOLON in kinds:
        first_end = kinds.index(TokenType.SEMICOLON)
        if any(kind != TokenType.SEMICOLON for kind in kinds[first_end:]):
            raise StatementRefused(
                "one-statement",
                "something follows the first semicolon.",
                remedy="Write exactly one statement.",
            )
    if tokens[0].token_type not in _FIRST_WORDS:
        raise StatementRefused(
            "query-only", f"it begins with {tokens[0].text.upper()[:40]}.", remedy=_READ_ONLY
        )


def _check_node(node: exp.Expr) -> None:
    for kind, rule, problem in _FORBIDDEN_NODES:
        if isinstance(node, kind):
            raise StatementRefused(rule, f"{problem}.", remedy=_READ_ONLY)


def _generate(tree: exp.Expr, dialect: str) -> str:
    with _malformed_is_refused(dialect):
        return tree.sql(
            dialect=dialect,
            comments=False,
            normalize_functions=False,
            unsupported_level=ErrorLevel.RAISE,
        )


@contextmanager
def _malformed_is_refused(dialect: str) -> Generator[None]:
    """Turn whatever sqlglot raises into a refusal; some malformed texts make it fall over."""
    try:
        yield
    except StatementRefused:
        raise
    except RecursionError:
        raise StatementRefused(
            "nesting", "the statement is nested too deeply.", remedy="Use WITH to flatten it."
        ) from None
    except Exception as error:
        problem = _first_line(error) if isinstance(error, SqlglotError) else "it cannot be parsed"
        raise StatementRefused(
            "syntax", f"{problem}.", remedy=f"Correct the {dialect} syntax."
        ) from error


def _is_ordered(tree: exp.Expr) -> bool:
    return tree.unnest().args.get("order") is not None


def _first_line(error: Exception) -> str:
    text = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "").strip()
    return (text.splitlines() or ["it cannot be parsed"])[0].rstrip(". ")
