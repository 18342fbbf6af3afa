"""One column that must equal two values at once: no row can, but two rows of one thing can.

"Which countries have a singer of rock and one of jazz?" is the countries of the first that are also
countries of the second. A small model writes `genre = 'rock' AND genre = 'jazz'`, which finds
nothing; an INTERSECT of the two finds what was asked for.
"""

from __future__ import annotations

from collections import defaultdict

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

_NOT_DIVISIBLE = ("group", "having", "limit", "offset", "order", "distinct", "windows", "qualify")


def intersected(sql: str, *, dialect: str) -> str | None:
    """The statement as an INTERSECT, one query for each of the values; None unless there are two.

    None, too, where the statement counts, groups, orders or limits: what it would mean for the two
    parts is not clear.

    Args:
        sql: a statement that the database accepts and that finds nothing.
        dialect: sqlglot's name of the SQL dialect.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=dialect)
    except (SqlglotError, ValueError, RecursionError):
        return None
    if not isinstance(tree, exp.Select) or any(tree.args.get(part) for part in _NOT_DIVISIBLE):
        return None
    if any(item.find(exp.AggFunc) for item in tree.expressions):
        return None
    where = tree.args.get("where")
    parts = list(where.this.flatten()) if where and isinstance(where.this, exp.And) else []
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        if (column := _column_of(part)) is not None:
            wanted[column].append(index)
    several = [indexes for indexes in wanted.values() if len(indexes) > 1]
    if len(several) != 1 or len({parts[index].sql() for index in several[0]}) < len(several[0]):
        return None
    queries = [_with_only(tree, parts, index, several[0]) for index in several[0]]
    whole: exp.Query = queries[0]
    for query in queries[1:]:
        whole = whole.intersect(query)
    return whole.sql(dialect=dialect)


def _column_of(part: exp.Expr) -> str | None:
    """The column, in small letters, of `column = literal`."""
    if not isinstance(part, exp.EQ):
        return None
    column, literal = part.this, part.expression
    if isinstance(column, exp.Literal):
        column, literal = literal, column
    if not isinstance(column, exp.Column) or not isinstance(literal, exp.Literal):
        return None
    return f"{column.table}.{column.name}".casefold()


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
