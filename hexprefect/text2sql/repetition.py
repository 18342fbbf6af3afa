"""Rows that a join alone repeats: who owns a cat and a dog is still one person.

A question for the students who have pets names each of them once. A small model writes the join and
forgets the DISTINCT. Of 15 gold statements (Spider outside the sample, and defog) that join, select
from one table only, neither group nor count, and return repeated rows, 12 say DISTINCT.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import build_scope

from hexprefect.text2sql.from_clause import tables_of
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import Schema, Table


@dataclass(frozen=True, slots=True)
class Repetition:
    """A statement whose rows a join may repeat."""

    keys: str
    """Selects the primary key of what is asked for: repeated keys are repeated things."""
    distinct: str
    """The statement with each of its rows once."""


def repetition(sql: str, schema: Schema) -> Repetition | None:
    """How to find out whether a join repeats rows, and the statement without that.

    None unless the statement joins tables, selects bare columns of one of them that has a primary
    key, and neither counts, groups, limits nor orders by what it does not select.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        scope = build_scope(tree)
    except (SqlglotError, ValueError, RecursionError):
        return None
    if scope is None or not isinstance(tree, exp.Select) or not tree.args.get("joins"):
        return None
    if any(tree.args.get(part) for part in ("distinct", "group", "having", "limit", "offset")):
        return None
    tables = tables_of(scope, schema)
    selected = [item.unalias() for item in tree.expressions]
    owners = {_owner(item, tables) for item in selected}
    alias = owners.pop() if len(owners) == 1 else None
    if alias is None or not _has_readable_key(tables[alias]) or not _orders_by(tree, selected):
        return None
    distinct = tree.copy().distinct()
    names = [
        exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias))
        for name in tables[alias].primary_key
    ]
    keys = tree.select(*names, append=False)
    keys.set("order", None)
    return Repetition(keys.sql(dialect=schema.dialect), distinct.sql(dialect=schema.dialect))


def _has_readable_key(table: Table) -> bool:
    key = table.primary_key
    return bool(key) and all(table.column(name) is not None for name in key)


def has_repeated_rows(rows: Rows) -> bool:
    """Whether a row occurs twice."""
    return len({repr(row) for row in rows.rows}) < len(rows.rows)


def _owner(item: exp.Expression, tables: dict[str, Table]) -> str | None:
    """The alias of the table that a selected column is of; None for anything but a column."""
    if not isinstance(item, exp.Column) or not isinstance(item.this, exp.Identifier):
        return None
    if item.table:
        wanted = item.table.casefold()
        found = [alias for alias in tables if alias.casefold() == wanted]
    else:
        found = [alias for alias, table in tables.items() if table.column(item.name) is not None]
    return found[0] if len(found) == 1 else None


def _orders_by(tree: exp.Select, selected: list[exp.Expression]) -> bool:
    """Whether the order, if there is one, is by what is selected: else DISTINCT has none."""
    order = tree.args.get("order")
    return order is None or all(item.this in selected for item in order.expressions)
