"""The tables in the FROM of one query, and what the statement calls them."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.optimizer.scope import Scope

from hexprefect.text2sql.schema import Schema, Table


def sources_of(scope: Scope, schema: Schema) -> dict[str, tuple[exp.Table, Table]]:
    """By their aliases, the places where a query reads a table of the catalogue, and that table."""
    return {
        alias: (source, table)
        for alias, source in scope.sources.items()
        if isinstance(source, exp.Table)
        and (table := schema.table(source.name, source.db or None)) is not None
    }


def tables_of(scope: Scope, schema: Schema) -> dict[str, Table]:
    """The catalogue's tables that a query reads, by their aliases; other sources are left out."""
    return {alias: table for alias, (_, table) in sources_of(scope, schema).items()}


def called(source: exp.Table) -> exp.Identifier:
    """What a statement calls a table in its FROM, quoted if it is there: `T1` is not `"T1"`."""
    alias = source.args.get("alias")
    name = alias.this if isinstance(alias, exp.TableAlias) and alias.this else source.this
    assert isinstance(name, exp.Identifier), "tables are looked up by their names before"
    return name
