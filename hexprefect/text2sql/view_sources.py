"""What a view is made of, read from its definition: allow-lists look through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.resolution import resolve_tables
from hexprefect.text2sql.schema import Schema, Table


def with_sources(
    tables: Sequence[Table],
    definitions: dict[str, str],
    *,
    dialect: str,
    default_schema: str | None,
) -> tuple[Table, ...]:
    """The tables, each view with the full names of what it reads.

    A definition that is missing, or that this parser does not understand, or that reads what the
    catalogue does not show, leaves the view's sources unknown.

    Args:
        tables: of the whole catalogue.
        definitions: by the view's full name.
    """
    schema = Schema(dialect, tuple(tables), default_schema)
    return tuple(
        replace(table, reads=_sources(definitions.get(table.full_name, ""), table, schema))
        if table.is_view
        else table
        for table in tables
    )


def _sources(definition: str, view: Table, schema: Schema) -> tuple[str, ...] | None:
    try:
        tree = sqlglot.parse_one(definition, dialect=schema.dialect)
    except (SqlglotError, RecursionError, ValueError):
        return None
    if isinstance(tree, exp.Create):
        tree = tree.expression
    if not isinstance(tree, exp.Query):
        return None
    if any(isinstance(node.this, exp.Func) for node in tree.find_all(exp.Table)):
        return None
    try:
        found = resolve_tables(_within_schema(tree, view), schema.dialect, schema)
    except StatementRefused:
        return None
    return tuple(sorted({item.name for item in found}))


def _within_schema(tree: exp.Query, view: Table) -> exp.Query:
    """MySQL writes the database before every table, the default one too; others the schema."""
    for table in tree.find_all(exp.Table):
        if table.catalog:
            table.set("catalog", None)
    return tree
