"""The guard: one statement that only reads, proven on its whole syntax tree.

A statement passes when sqlglot reads it as exactly one query, nothing anywhere in its tree writes,
locks, sets or leaves the database, every table is in the reflected catalogue (or a WITH above it),
and every function is allowed for the dialect. What then runs is not the text that came in but the
text regenerated from the checked tree, so that a comment or an odd byte cannot mean one thing to
the guard and another to the database. Every refusal names its rule and what would pass.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.functions import ALLOWED, FORBIDDEN
from hexprefect.text2sql.names import must_be_quoted
from hexprefect.text2sql.parsing import parse, tokenize
from hexprefect.text2sql.schema import Schema

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
        dialect: `sqlite` or `postgres`.
        schema: the catalogue that table names must be in; None leaves that to the database.

    Raises:
        StatementRefused: with the rule that was broken and what would pass.
    """
    names = {} if schema is None else schema.spellings
    tree = _parse_one(sql, dialect, names)
    if schema is not None:
        _quote_from_catalogue(tree, dialect, schema)
    tables = _inspect(tree, dialect, schema)
    generated = _generate(tree, dialect)
    # The generated text is what runs, so it is what must pass.
    _inspect(_parse_one(generated, dialect), dialect, schema)
    return CheckedStatement(generated, tables, _is_ordered(tree))


def _inspect(tree: exp.Expr, dialect: str, schema: Schema | None) -> tuple[str, ...]:
    if not isinstance(tree.unnest(), _QUERIES):
        raise StatementRefused(
            "query-only", f"{tree.key.upper()} is not a query.", remedy=_READ_ONLY
        )
    for node in tree.walk():
        _check_node(node)
        if isinstance(node, exp.Func):
            _check_function(node, dialect)
    return tuple(sorted(_check_tables(tree, dialect, schema)))


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


def _check_function(node: exp.Func, dialect: str) -> None:
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        names = {node.name.casefold()}
        known = names <= ALLOWED.get(dialect, frozenset())
    else:
        names = {name.casefold() for name in node.sql_names()}
        known = True
    if isinstance(node.parent, exp.Dot):
        qualified = node.parent.sql(dialect=dialect)
        if not qualified.casefold().startswith("pg_catalog."):
            raise StatementRefused(
                "function",
                f"the function {qualified.partition('(')[0]} belongs to a schema.",
                remedy="Use a built-in function by its bare name.",
            )
    if known and not names & FORBIDDEN:
        return
    name = min(names)
    near = get_close_matches(name, ALLOWED.get(dialect, frozenset()), n=3)
    remedy = f"Near names that pass: {', '.join(near)}." if near else "Use a built-in function."
    raise StatementRefused(
        "function", f"the function {name} is not allowed in {dialect}.", remedy=remedy
    )


def _check_tables(tree: exp.Expr, dialect: str, schema: Schema | None) -> Iterator[str]:
    seen: set[str] = set()
    for node in _table_names(tree):
        if _names_a_cte(node, dialect):
            continue
        if schema is None:
            found = node.name
        else:
            name, owner, database = _table_and_schema(node)
            table = None if database else schema.table(name, owner)
            if table is None:
                raise _unknown_table(node, schema)
            found = table.full_name
        if found not in seen:
            seen.add(found)
            yield found


def _table_names(tree: exp.Expr) -> Iterator[exp.Table | exp.Column]:
    """Every place that reads a table by its name."""
    for listed in tree.find_all(exp.In):
        # SQLite's `x IN name` reads the table `name`.
        field = listed.args.get("field")
        if isinstance(field, exp.Column):
            yield field
        elif field is not None:
            raise StatementRefused(
                "catalogue",
                f"{field.sql()} is not a list.",
                remedy="Write IN (…) with a list or a SELECT.",
            )
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Identifier):
            yield table
        elif table.this is not None and not isinstance(table.this, exp.Func):
            raise StatementRefused(
                "catalogue",
                f"{table.sql()} is not the name of a table.",
                remedy="Name a table, at most with its schema.",
            )


def _table_and_schema(node: exp.Table | exp.Column) -> tuple[str, str | None, str]:
    """Name, schema and database; a column after IN stands for a table."""
    if isinstance(node, exp.Column):
        return node.name, node.table or None, node.db
    return node.name, node.db or None, node.catalog


def _unknown_table(node: exp.Table | exp.Column, schema: Schema) -> StatementRefused:
    name = ".".join(part for part in reversed(_table_and_schema(node)) if part)
    known = {table.full_name.casefold(): table.full_name for table in schema.tables}
    near = get_close_matches(name.casefold(), known, n=3, cutoff=0.5)
    listed = [known[item] for item in near] or [table.full_name for table in schema.tables[:12]]
    return StatementRefused(
        "catalogue",
        f"there is no table {name}.",
        remedy=f"Tables that pass: {', '.join(listed)}." if listed else "The database is empty.",
    )


def _quote_from_catalogue(tree: exp.Expr, dialect: str, schema: Schema) -> None:
    """Quote unquoted names that mean something else, or nothing, without quotes.

    `SELECT Name FROM Singer` on a PostgreSQL table "Singer" gets the catalogue's spelling, and an
    alias called `update` its quotes. A name in two spellings is left to the database.
    """
    aliases = {
        alias.name.casefold(): frozenset({alias.name})
        for node in tree.find_all(exp.Alias, exp.TableAlias, exp.CTE)
        if isinstance(alias := node.args.get("alias") or node.this, exp.Identifier)
    }
    for node in tree.find_all(exp.Identifier):
        if node.args.get("quoted"):
            continue
        key = node.name.casefold()
        known = schema.spellings.get(key) or aliases.get(key, frozenset())
        if dialect == "postgres" and node.name.lower() in known:
            known = frozenset({node.name.lower()})
        if len(known) == 1 and must_be_quoted(name := next(iter(known)), dialect):
            node.set("this", name)
            node.set("quoted", True)


def _names_a_cte(table: exp.Table | exp.Column, dialect: str) -> bool:
    """Whether a table's name means a WITH query that is visible where the table stands.

    A query in a WITH list sees those before it, and itself and those after it only under
    RECURSIVE; SQLite makes no such difference. Getting this wrong would let
    `WITH pg_authid AS (SELECT * FROM pg_authid) …` read the real table.
    """
    bare_name, owner, database = _table_and_schema(table)
    if owner or database:
        return False
    name = bare_name.casefold()
    below: exp.Expr = table
    above = table.parent
    while above is not None:
        if isinstance(above, exp.With):
            sees_all = bool(above.args.get("recursive")) or dialect == "sqlite"
            for cte in above.expressions:
                if cte is below and not sees_all:
                    break
                if cte.alias.casefold() == name:
                    return True
        else:
            with_ = above.args.get("with_")
            if (
                isinstance(with_, exp.With)
                and with_ is not below
                and any(cte.alias.casefold() == name for cte in with_.expressions)
            ):
                return True
        below, above = above, above.parent
    return False


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
