"""A table that is not there, whose columns are: the model joins `song` for `singer.song_name`.

The statement runs without the table once its columns are taken from where they are. Only code is
needed where each of them has one place among the tables that the statement already has, and where
the table does nothing but lend its columns: one that is counted, or that rows are kept for, cannot
be left out.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.conditions import parts_of
from hexprefect.text2sql.from_clause import called
from hexprefect.text2sql.repair import column_like
from hexprefect.text2sql.schema import Schema, Table

_TOO_COMMON = frozenset(
    {
        "id", "key", "code", "no", "nr", "number", "uuid", "name", "title", "type", "date", "year",
        "status", "description", "value",
    }
)  # fmt: skip
"""Names that say nothing about whose column it is: a song's name is not its singer's."""


def without_invented_tables(sql: str, schema: Schema) -> str | None:
    """The statement without the tables that it joins and that do not exist.

    None unless each of their columns, but for those that only join them, has a name of its own and
    is in exactly one of the other tables; and where the query counts, groups or selects `*`, or
    keeps rows that the join would not. What else stands in the ON moves to the WHERE.

    Args:
        sql: one that the guard or the database refused for a name.
        schema: the whole schema.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        scopes = [scope for scope in traverse_scope(tree) if _invented(scope, schema)]
        is_mended = bool(scopes) and all(_leave_out(scope, schema) for scope in scopes)
    except (SqlglotError, ValueError, RecursionError):
        return None
    return tree.sql(dialect=schema.dialect) if is_mended else None


def _invented(scope: Scope, schema: Schema) -> list[exp.Join]:
    """Joins of tables that the catalogue does not have."""
    select = scope.expression
    joins = (select.args.get("joins") or ()) if isinstance(select, exp.Select) else ()
    return [
        join
        for join in joins
        if isinstance(join.this, exp.Table)
        and isinstance(scope.sources.get(join.this.alias_or_name), exp.Table)
        and schema.table(join.this.name, join.this.db or None) is None
    ]


def _leave_out(scope: Scope, schema: Schema) -> bool:
    """Take the invented tables from a query, and their columns from the others; whether it could be
    done."""
    select = scope.expression
    assert isinstance(select, exp.Select), "only of these the joins are looked at"
    invented = {id(join): join for join in _invented(scope, schema)}
    gone = {join.this.alias_or_name.casefold() for join in invented.values()}
    kept = _others(scope, schema, gone)
    if kept is None or not _only_lends(select, invented.values()):
        return False
    only_join: set[int] = set()
    filters: list[exp.Expr] = []
    for join in invented.values():
        for part in parts_of(join.args["on"]):
            if _joins(part, gone):
                only_join.update(id(column) for column in part.find_all(exp.Column))
            else:
                filters.append(part)
    moved = 0
    for column in scope.columns:
        if column.table.casefold() not in gone or id(column) in only_join:
            continue
        owner = None if column.name.casefold() in _TOO_COMMON else _only_owner(column.name, kept)
        if owner is None:
            return False
        column.set("table", owner[0].copy())
        column.set("this", exp.to_identifier(owner[1], quoted=True))
        moved += 1
    select.set("joins", [join for join in select.args["joins"] if id(join) not in invented])
    if filters:
        select.where(*filters, copy=False)
    return moved > 0


def _others(
    scope: Scope, schema: Schema, gone: Collection[str]
) -> list[tuple[exp.Identifier, Table]] | None:
    """The tables that stay, as the statement calls them; None where one of them is a query."""
    kept: list[tuple[exp.Identifier, Table]] = []
    for name, source in scope.sources.items():
        if name.casefold() in gone:
            continue
        if not isinstance(source, exp.Table):
            return None
        if (table := schema.table(source.name, source.db or None)) is None:
            return None
        kept.append((called(source), table))
    return kept


def _only_lends(select: exp.Expr, joins: Collection[exp.Join]) -> bool:
    """Whether the joins could do no more than lend columns: nothing counts or keeps their rows."""
    if any(
        join.side or join.kind not in ("", "INNER") or not join.args.get("on") for join in joins
    ):
        return False
    if select.args.get("group") or select.find(exp.Star):
        return False
    shown = (*select.expressions, select.args.get("having"), select.args.get("order"))
    return not any(part is not None and part.find(exp.AggFunc) for part in shown)


def _joins(part: exp.Expr, gone: Collection[str]) -> bool:
    """Whether a condition does nothing but tie an invented table to another."""
    if not isinstance(part, exp.EQ):
        return False
    sides = [side for side in (part.this, part.expression) if isinstance(side, exp.Column)]
    return len(sides) == 2 and any(side.table.casefold() in gone for side in sides)


def _only_owner(
    column: str, tables: list[tuple[exp.Identifier, Table]]
) -> tuple[exp.Identifier, str] | None:
    """The one table that has such a column, as the statement calls it, and how it is spelt."""
    owners = [
        (name, found) for name, table in tables if (found := column_like(table, column)) is not None
    ]
    return owners[0] if len(owners) == 1 else None
