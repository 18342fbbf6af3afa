"""One column that must equal two values at once: no row can, but two rows of one thing can.

"Which singers have a song of rock and one of jazz?" A small model joins the songs and writes
`genre = 'rock' AND genre = 'jazz'`, which finds nothing. What was meant is the singers of the one
whose key is among those of the other.
"""

from __future__ import annotations

from collections import defaultdict

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import build_scope

from hexprefect.text2sql.conditions import parts_of
from hexprefect.text2sql.from_clause import called, sources_of
from hexprefect.text2sql.schema import Schema, Table

_NOT_DIVISIBLE = (
    "with_", "group", "having", "limit", "offset", "order", "distinct", "windows", "qualify",
)  # fmt: skip


def with_each_value(sql: str, schema: Schema) -> str | None:
    """The statement for things that have all of the values; None unless that is what it means.

    That needs a join: what is selected is of one table that has a key of one column, and the two
    values are of another one. What counts, groups, orders or limits is left alone.

    Args:
        sql: a statement that the database accepts and that finds nothing.
        schema: the whole schema.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        scope = build_scope(tree)
    except (SqlglotError, ValueError, RecursionError):
        return None
    if scope is None or not isinstance(tree, exp.Select):
        return None
    if any(tree.args.get(part) for part in _NOT_DIVISIBLE):
        return None
    tables = {
        alias.casefold(): (called(source), table)
        for alias, (source, table) in sources_of(scope, schema).items()
    }
    owners = {_owner(item.unalias(), tables) for item in tree.expressions}
    owner = owners.pop() if len(owners) == 1 else None
    where = tree.args.get("where")
    if owner is None or where is None or len(tables) != len(scope.sources):
        return None
    name, table = tables[owner]
    parts = list(parts_of(where.this))
    values = _values_of_one_column(parts, tables, owner)
    if not values or len(table.primary_key) != 1 or table.column(table.primary_key[0]) is None:
        return None
    key = exp.column(exp.to_identifier(table.primary_key[0], quoted=True), table=name.copy())
    first, *others = values
    whole = _with_only(tree, parts, first, values)
    for other in others:
        those = _with_only(tree, parts, other, values).select(key.copy(), append=False)
        whole = whole.where(exp.In(this=key.copy(), query=exp.Subquery(this=those)), copy=False)
    return whole.sql(dialect=schema.dialect)


Tables = dict[str, tuple[exp.Identifier, Table]]


def _values_of_one_column(parts: list[exp.Expr], tables: Tables, owner: str) -> list[int]:
    """Where one column of another table than `owner` is compared with different values."""
    wanted: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        column = _compared(part)
        alias = _owner(column, tables) if column is not None else None
        if column is not None and alias is not None:
            known = tables[alias][1].column(column.name)
            wanted[alias, known.name if known else column.name].append(index)
    several = [(alias, indexes) for (alias, _), indexes in wanted.items() if len(indexes) > 1]
    if len(several) != 1 or several[0][0] == owner:
        return []
    indexes = several[0][1]
    is_different = len({_literal(parts[index]) for index in indexes}) == len(indexes)
    return indexes if is_different else []


def _compared(part: exp.Expr) -> exp.Column | None:
    """The column of `column = literal`, either way round."""
    if not isinstance(part, exp.EQ):
        return None
    sides = (part.this, part.expression)
    columns = [side for side in sides if isinstance(side, exp.Column)]
    has_literal = any(isinstance(side, exp.Literal) for side in sides)
    return columns[0] if len(columns) == 1 and has_literal else None


def _literal(part: exp.Expr) -> str:
    return next(str(side) for side in part.args.values() if isinstance(side, exp.Literal))


def _owner(item: exp.Expr, tables: Tables) -> str | None:
    """The alias, in small letters, of the table that a column is of; None for anything else."""
    if not isinstance(item, exp.Column) or not isinstance(item.this, exp.Identifier):
        return None
    wanted = item.table.casefold()
    found = [
        alias
        for alias, (_, table) in tables.items()
        if wanted in ("", alias) and table.column(item.name) is not None
    ]
    return found[0] if len(found) == 1 else None


def _with_only(
    tree: exp.Select, parts: list[exp.Expr], kept: int, alternatives: list[int]
) -> exp.Select:
    conditions = [
        part.copy()
        for index, part in enumerate(parts)
        if index == kept or index not in alternatives
    ]
    query = tree.copy()
    query.set("where", exp.Where(this=exp.and_(*conditions)))
    return query
