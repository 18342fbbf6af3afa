"""What is wrong with a statement's columns, read from the catalogue before the database is asked.

The commonest mistake of a small model is a column under a table that does not have it, mostly
because the join to its owner is missing: of the first 20 questions that docs/accuracy.md reports
on, eight of nine wrong statements. An engine only says "no such column"; here the owner is named
with the keys that lead to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlglot
from rapidfuzz import fuzz, process
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import ForeignKey, Schema, Table

_COLUMNS_NAMED = 20
_NAMES_SHOWN = 5
_NEAR_ENOUGH = 60.0
"""rapidfuzz's weighted ratio."""
_OWNERS_NAMED = 3
_JOINS_IN_A_PATH = 4
_ROW_IDS = frozenset({"rowid", "oid", "_rowid_", "ctid"})


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A column that a statement uses where it does not exist."""

    column: str
    alias: str
    """What the statement calls the table; empty when it names none."""
    tables: tuple[Table, ...]
    """Where it was looked for: the table of the alias, else all tables of the query."""
    beside: tuple[Table, ...]
    """All tables of the query."""


def misplaced_columns(sql: str, schema: Schema) -> tuple[Misplaced, ...]:
    """Columns that no table in their place has, in order of the statement; each once.

    Derived tables are not looked into from outside. A statement that cannot be parsed has none.
    """
    try:
        scopes = traverse_scope(sqlglot.parse_one(sql, dialect=schema.dialect))
    except (SqlglotError, ValueError):
        return ()
    found = [item for scope in scopes for item in _misplaced_in(scope, schema)]
    return tuple(dict.fromkeys(found))


def diagnose(sql: str, schema: Schema) -> str:
    """Lines for a correcting model: which column is where, and the keys that lead to it."""
    lines: dict[str, None] = {}
    for item in misplaced_columns(sql, schema):
        for line in _explain(item, schema):
            lines[line] = None
    return "\n".join(lines)


def join_path(start: Sequence[Table], goal: Table, schema: Schema) -> tuple[str, ...]:
    """Conditions of the shortest chain of keys from one of `start` to `goal`; empty without one."""
    routes: dict[str, tuple[str, ...]] = {table.full_name: () for table in start}
    waiting = deque(start)
    edges = _edges(schema)
    while waiting:
        table = waiting.popleft()
        route = routes[table.full_name]
        if table is goal or len(route) >= _JOINS_IN_A_PATH:
            continue
        for other, condition in edges.get(table.full_name, ()):
            if other.full_name not in routes:
                routes[other.full_name] = (*route, condition)
                waiting.append(other)
    return routes.get(goal.full_name, ())


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


def _misplaced_in(scope: Scope, schema: Schema) -> Iterable[Misplaced]:
    tables = {
        name: schema.table(source.name, source.db or None)
        for name, source in scope.sources.items()
        if isinstance(source, exp.Table)
    }
    known = tuple(table for table in tables.values() if table is not None)
    all_known = len(known) == len(scope.sources)
    named = {item.alias.casefold() for item in scope.expression.find_all(exp.Alias)}
    for column in scope.columns:
        name = column.name
        if name.casefold() in _ROW_IDS or not isinstance(column.this, exp.Identifier):
            continue
        if column.table:
            table = tables.get(column.table)
            if table is not None and table.column(name) is None:
                yield Misplaced(name, column.table, (table,), known)
        elif (
            all_known
            and known
            # An inner query's column may belong to it; it has a scope of its own.
            and column.find_ancestor(exp.Select) is scope.expression
            and scope.is_root
            # SQLite reads "a text in these quotes" as a text where no column has that name.
            and not column.this.quoted
            and name.casefold() not in named
            and not any(table.column(name) for table in known)
        ):
            yield Misplaced(name, "", known, known)


def _explain(item: Misplaced, schema: Schema) -> Iterable[str]:
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


def _edges(schema: Schema) -> dict[str, list[tuple[Table, str]]]:
    edges: dict[str, list[tuple[Table, str]]] = {}
    for table in schema.tables:
        for key in table.foreign_keys:
            target = schema.table(key.table, key.schema)
            if target is None or target is table:
                continue
            condition = _condition(table, key, target, schema.dialect)
            edges.setdefault(table.full_name, []).append((target, condition))
            edges.setdefault(target.full_name, []).append((table, condition))
    return edges


def _condition(table: Table, key: ForeignKey, target: Table, dialect: str) -> str:
    here, there = qualified_name(table, dialect), qualified_name(target, dialect)
    return " AND ".join(
        f"{here}.{quoted(one, dialect)} = {there}.{quoted(other, dialect)}"
        for one, other in zip(key.columns, key.referred_columns or target.primary_key, strict=False)
    )
