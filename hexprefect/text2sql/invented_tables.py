"""A table that is not there, whose columns are: the model joins `song` for `singer.song_name`.

The statement runs without the table once its columns are taken from where they are. Only code is
needed where each of them has one place among the tables that the statement already has.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.key_graph import called
from hexprefect.text2sql.repair import column_like
from hexprefect.text2sql.schema import Schema, Table


def without_invented_tables(sql: str, schema: Schema) -> str | None:
    """The statement without the tables that it joins and that do not exist; None where one of their
    columns is in none or several of the others.

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
    invented = {id(join): join for join in _invented(scope, schema)}
    gone = {join.this.alias_or_name.casefold() for join in invented.values()}
    kept: list[tuple[exp.Identifier, Table]] = []
    for name, source in scope.sources.items():
        if name.casefold() in gone:
            continue
        if not isinstance(source, exp.Table):
            return False
        if (table := schema.table(source.name, source.db or None)) is None:
            return False
        kept.append((called(source), table))
    conditions = [join.args["on"] for join in invented.values() if join.args.get("on")]
    only_join = {id(column) for part in conditions for column in part.find_all(exp.Column)}
    for column in scope.columns:
        if column.table.casefold() in gone and id(column) not in only_join:
            if (owner := _only_owner(column.name, kept)) is None:
                return False
            column.set("table", owner[0].copy())
            column.set("this", exp.to_identifier(owner[1], quoted=True))
    joins = scope.expression.args["joins"]
    scope.expression.set("joins", [join for join in joins if id(join) not in invented])
    return True


def _only_owner(
    column: str, tables: list[tuple[exp.Identifier, Table]]
) -> tuple[exp.Identifier, str] | None:
    """The one table that has such a column, as the statement calls it, and how it is spelt."""
    owners = [
        (name, found) for name, table in tables if (found := column_like(table, column)) is not None
    ]
    return owners[0] if len(owners) == 1 else None
