"""What is wrong with a statement's columns, read from the catalogue before the database is asked.

The commonest mistake of a small model is a column under a table that does not have it, mostly
because the join to its owner is missing: of the first 20 questions that docs/accuracy.md reports
on, eight of nine wrong statements. An engine only says "no such column"; here the owner is named
with the keys that lead to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlglot
from rapidfuzz import fuzz, process
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.key_graph import join_path
from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Schema, Table

_COLUMNS_NAMED = 20
_NAMES_SHOWN = 5
_NEAR_ENOUGH = 60.0
"""rapidfuzz's weighted ratio."""
_OWNERS_NAMED = 3
_ROW_IDS = frozenset({"rowid", "oid", "_rowid_", "ctid"})


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A column that a statement uses where it does not exist."""

    column: str
    alias: str
    """What the statement calls the table; empty when it names none."""
    tables: tuple[Table, ...]
    """Where it was looked for: the table of the alias, else all tables of the query. None for a
    table that is not in the query."""
    beside: tuple[Table, ...]
    """All tables of the query."""


def misplaced_columns(sql: str, schema: Schema) -> tuple[Misplaced, ...]:
    """Columns that no table in their place has, in order of the statement; each once.

    Derived tables are not looked into from outside. A statement that cannot be parsed has none.
    """
    try:
        scopes = traverse_scope(sqlglot.parse_one(sql, dialect=schema.dialect))
    except (SqlglotError, ValueError, RecursionError):
        return ()
    found = [item for scope in scopes for _, item in misplaced_in(scope, schema)]
    return tuple(dict.fromkeys(found))


def diagnose(sql: str, schema: Schema) -> str:
    """Lines for a correcting model: which column is where, and the keys that lead to it."""
    lines: dict[str, None] = {}
    for item in misplaced_columns(sql, schema):
        for line in _explain(item, schema):
            lines[line] = None
    return "\n".join(lines)


def near_names(name: str, schema: Schema) -> list[str]:
    """Columns (as `table.column`) and tables whose names resemble `name`, the nearest first."""
    names: dict[str, str] = {}
    for table in schema.tables:
        shown = qualified_name(table, schema.dialect)
        names[shown] = table.name
        for column in table.columns:
            names[f"{shown}.{quoted(column.name, schema.dialect)}"] = column.name
    found = process.extract(
        name.casefold(),
        {key: value.casefold() for key, value in names.items()},
        scorer=fuzz.WRatio,
        score_cutoff=_NEAR_ENOUGH,
        limit=_NAMES_SHOWN,
    )
    return [key for _, _, key in found]


def misplaced_in(scope: Scope, schema: Schema) -> Iterable[tuple[exp.Column, Misplaced]]:
    """Each misplaced column of one query of a statement, with its place in the tree."""
    tables = _tables_of(scope, schema)
    known = tuple(table for table in tables.values() if table is not None)
    # What an inner query does not have itself may belong to the queries around it.
    around = list(_around(scope))
    outer = [table for one in around for table in _tables_of(one, schema).values()]
    all_known = all(
        isinstance(source, exp.Table) for one in (scope, *around) for source in one.sources.values()
    ) and None not in (*tables.values(), *outer)
    visible = {name.casefold() for one in (scope, *around) for name in one.sources}
    named = {item.alias.casefold() for item in scope.expression.find_all(exp.Alias)}
    for column in scope.columns:
        name = column.name
        if column.find_ancestor(exp.Select) is not scope.expression:
            continue  # Of an inner query, which has its turn.
        if name.casefold() in _ROW_IDS or not isinstance(column.this, exp.Identifier):
            continue
        if column.table:
            called = column.table.casefold()
            table = tables.get(called)
            if table is not None and table.column(name) is None:
                yield column, Misplaced(name, column.table, (table,), known)
            elif all_known and known and called not in visible:
                yield column, Misplaced(name, column.table, (), known)
        elif (
            all_known
            and known
            # SQLite reads "a text in these quotes" as a text where no column has that name.
            and not column.this.quoted
            and name.casefold() not in named
            and not any(table and table.column(name) for table in (*known, *outer))
        ):
            yield column, Misplaced(name, "", known, known)


def _tables_of(scope: Scope, schema: Schema) -> dict[str, Table | None]:
    """By their aliases in small letters, the tables in the FROM of one query; None for one that is
    not known."""
    return {
        name.casefold(): schema.table(source.name, source.db or None)
        for name, source in scope.sources.items()
        if isinstance(source, exp.Table)
    }


def _around(scope: Scope) -> Iterable[Scope]:
    """The queries that an inner one stands in, the nearest first."""
    while scope.parent is not None:
        scope = scope.parent
        yield scope


def _explain(item: Misplaced, schema: Schema) -> Iterable[str]:
    if not item.tables:
        yield f"{item.alias} is not in the FROM of the query."
    for table in item.tables:
        name = qualified_name(table, schema.dialect)
        shown = f"{item.alias} is {name}, which" if _is_other(item.alias, table) else name
        columns = ", ".join(
            quoted(column.name, schema.dialect) for column in table.columns[:_COLUMNS_NAMED]
        )
        yield f"{shown} has no column {item.column}; it has {columns}."
    owners = [table for table in schema.tables if table.column(item.column) is not None]
    if not owners and (near := near_names(item.column, schema)):
        yield f"No table has a column {item.column}; near names: {', '.join(near)}."
    for owner in owners[:_OWNERS_NAMED]:
        path = join_path(item.tables, owner, schema) or join_path(item.beside, owner, schema)
        how = f"; it is reached by {' and '.join(path)}" if path else ""
        yield f"{item.column} is a column of {qualified_name(owner, schema.dialect)}{how}."


def _is_other(alias: str, table: Table) -> bool:
    return bool(alias) and alias.casefold() != table.name.casefold()
