"""Mending a statement that found nothing because a text is spelt, or placed, otherwise.

A question says USA where the column holds `usa`, or a model looks for an airport's code among the
names of cities. The values that reflection keeps of each column tell which text was meant, without
a call. What is mended counts only when it returns rows where the statement before returned none.

Of a large table only some values are kept, and those may be an hour old. So that a text is not
taken from where it stands, the database is asked whether the column really does not hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.from_clause import tables_of
from hexprefect.text2sql.schema import Column, Schema, Table


@dataclass(frozen=True, slots=True)
class Proposal:
    """A statement that may be meant: only if the database holds none of the texts as they were."""

    sql: str
    absent: tuple[str, ...] = ()
    """Statements, each of which returns a row if a text stands where it was looked for."""


def respelled(sql: str, schema: Schema) -> Proposal | None:
    """The statement with its texts as the database spells them; None when there is nothing to mend.

    Only equality is looked at: `column = 'text'` and `column IN ('text', …)`. A text that is among
    the values kept of its column, or whose column is not known, stays.

    Args:
        sql: one that returned no rows.
        schema: the whole schema, with the values that were kept of its columns.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        scopes = traverse_scope(tree)
    except (SqlglotError, ValueError, RecursionError):
        return None
    absent: dict[str, None] = {}
    for scope in scopes:
        tables = tables_of(scope, schema)
        for column, text in _comparisons(scope):
            if (held := _mend(column, text, tables)) is not None:
                absent.setdefault(held.sql(dialect=schema.dialect))
    return Proposal(tree.sql(dialect=schema.dialect), tuple(absent)) if absent else None


def _comparisons(scope: Scope) -> Iterable[tuple[exp.Column, exp.Literal]]:
    """Each column that is compared with a text, and the text."""
    for column in scope.columns:
        match column.parent:
            case exp.EQ(this=left, expression=right):
                other = right if left is column else left
                if isinstance(other, exp.Literal) and other.is_string:
                    yield column, other
            case exp.In() as listed if listed.this is column:
                for item in listed.expressions:
                    if isinstance(item, exp.Literal) and item.is_string:
                        yield column, item


def _mend(column: exp.Column, text: exp.Literal, tables: dict[str, Table]) -> exp.Select | None:
    """Give a text its spelling in this column, else its column.

    Returns:
        A query for the text as it was, where it was; None when nothing changed.
    """
    wanted = text.this
    owners = [item for item in _columns(tables, column.table) if _is(item[1], column.name)]
    if len(owners) != 1:
        return None
    owner, own = owners[0]
    if not own.values or wanted in own.values:
        return None
    looked_for = _query_for(tables[owner], own, wanted)
    spellings = _spellings(own, wanted)
    if spellings:
        if len(spellings) != 1:
            return None
        text.replace(exp.Literal.string(spellings[0]))
        return looked_for
    if isinstance(column.parent, exp.In):
        return None
    elsewhere = [
        (alias, item, found[0])
        for alias, item in _columns(tables, "")
        if len(found := _spellings(item, wanted)) == 1
    ]
    if len(elsewhere) != 1:
        return None
    alias, item, spelling = elsewhere[0]
    text.replace(exp.Literal.string(spelling))
    column.replace(exp.column(exp.to_identifier(item.name, quoted=True), table=alias))
    return looked_for


def _query_for(table: Table, column: Column, text: str) -> exp.Select:
    """One row if a column holds a text."""
    source = exp.Table(
        this=exp.to_identifier(table.name, quoted=True),
        db=exp.to_identifier(table.schema, quoted=True) if table.schema else None,
    )
    held = exp.column(exp.to_identifier(column.name, quoted=True)).eq(exp.Literal.string(text))
    return exp.select(exp.Literal.number(1)).from_(source).where(held).limit(1)


def _columns(tables: dict[str, Table], alias: str) -> list[tuple[str, Column]]:
    """The columns of one table of the query, or of all, with its alias."""
    wanted = alias.casefold()
    return [
        (name, column)
        for name, table in tables.items()
        if not alias or name.casefold() == wanted
        for column in table.columns
    ]


def _is(column: Column, name: str) -> bool:
    return column.name.casefold() == name.casefold()


def _spellings(column: Column, text: str) -> list[str]:
    """Values of a column that are this text but for small and capital letters."""
    wanted = text.casefold()
    return [value for value in column.values if value.casefold() == wanted]
