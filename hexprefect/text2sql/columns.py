"""Qualified columns of a PostgreSQL statement: a column of what their relation is, or refused.

To PostgreSQL `c.f` is the column `f` of `c` and, where `c` has none, a call of the function `f`
with the row; so is `(…).f`. The list of functions that may be called would be worth nothing if it
held only for the other way of writing a call, so whatever has a dot must be proven to be a column.
A bare name never calls.
https://www.postgresql.org/docs/current/xfunc-sql.html#XFUNC-SQL-COMPOSITE-FUNCTIONS
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from hexprefect.text2sql.errors import StatementRefused
from hexprefect.text2sql.functions import is_allowed_name
from hexprefect.text2sql.relations import (
    Relations,
    called,
    columns_of_function,
    items_in,
    items_of_query,
    joined_by,
    possible_names,
)
from hexprefect.text2sql.schema import Schema

_DIALECT = "postgres"
_SEES_PART_OF_FROM = frozenset({"from_", "joins", "laterals", "with_"})


def check_columns(tree: exp.Expr, schema: Schema) -> None:
    """Prove that whatever is written with a dot is a column, or a call that may be made.

    Args:
        tree: a statement for PostgreSQL whose tables are in the catalogue.
        schema: the catalogue.

    Raises:
        StatementRefused: a name behind a dot is no column of the relation before it.
    """
    relations = Relations(schema)
    for node in tree.walk():
        match node:
            case exp.Column() | exp.Dot() if _names_no_value(node):
                pass
            case exp.Column() if node.args.get("table") is not None:
                _check_column(node, relations)
            case exp.Dot():
                _check_field(node, relations)
            case exp.Subquery():
                _check_order_behind(node)


def _names_no_value(node: exp.Expr) -> bool:
    """Whether a dot stands in the name of a type or a collation."""
    parent = node.parent
    return isinstance(parent, exp.DataType) or (
        isinstance(parent, exp.Collate) and node.arg_key == "expression"
    )


def _check_column(column: exp.Column, relations: Relations) -> None:
    name = column.this
    if not isinstance(name, exp.Identifier) or _may_be_called(name):
        return
    owner = column.args["table"]
    found = [
        relations.columns(item)
        for item in _called(column, owner)
        if relations.is_in_schema(item, column.args.get("db"))
    ]
    if found and all(item.has(name) for item in found):
        return
    shown = ".".join(part.name for part in column.parts)
    where = "" if found else f", as the FROM has no {owner.name} there"
    known = [item for columns in found for item in columns.names if item is not None]
    if known:
        remedy = f"Columns of {owner.name}: {', '.join(dict.fromkeys(known[:20]))}."
    else:
        remedy = f"Name a column of {owner.name}; give an expression a name with AS."
    # As PostgreSQL says it, so that whoever mends such a statement finds the name.
    raise StatementRefused("column", f"column {shown} does not exist{where}.", remedy=remedy)


def _check_field(dot: exp.Dot, relations: Relations) -> None:
    name = dot.expression
    if isinstance(name, exp.Star | exp.Func):
        # `(…).*` never calls; a call with its schema is checked as a function.
        return
    if isinstance(name, exp.Identifier) and (
        _may_be_called(name) or _is_field(dot.this, name, relations)
    ):
        return
    shown = name.name or name.sql(_DIALECT)
    raise StatementRefused(
        "column",
        f"({dot.this.unnest().sql(_DIALECT)[:60]}).{shown} may call a function {shown}.",
        remedy="Write alias.column for a column of a table; for a field of a composite value, "
        f"SELECT {shown} FROM (SELECT (…).*) AS parts.",
    )


def _is_field(value: exp.Expr, name: exp.Identifier, relations: Relations) -> bool:
    """Whether `(value).name` is certain to be a field."""
    if not isinstance(value, exp.Paren):
        return False
    inner = value.unnest()
    if isinstance(inner, exp.Func):
        return columns_of_function(inner).has(name)
    if not isinstance(inner, exp.Column) or len(inner.parts) != 1:
        return False
    # The row of the relation of that name, unless a column anywhere around has the name, too.
    around = [relations.columns(item) for item in _around(inner)]
    rows = [relations.columns(item) for item in _called(inner, inner.this)]
    return (
        bool(rows)
        and all(columns.has(name) for columns in rows)
        and all(columns.certainly_lacks(inner.this) for columns in around)
    )


def _check_order_behind(query: exp.Subquery) -> None:
    """To PostgreSQL an ORDER BY behind `(SELECT …)` stands within; here it would be read without.

    Raises:
        StatementRefused: it holds more than bare names, which mean the same in both readings.
    """
    for key in ("order", "limit", "offset"):
        clause = query.args.get(key)
        if clause is None:
            continue
        if any(clause.find_all(exp.Query)) or any(
            item.args.get("table") is not None for item in clause.find_all(exp.Column)
        ):
            raise StatementRefused(
                "column",
                f"the {key.upper()} stands behind a query in brackets.",
                remedy="Write it within the brackets, or name a column without its table.",
            )


def _may_be_called(name: exp.Identifier) -> bool:
    """Whether a call of this name would pass: then it does not matter how it is written."""
    return all(is_allowed_name(item, _DIALECT) for item in possible_names(name))


def _called(node: exp.Expr, name: exp.Identifier) -> list[exp.Expr]:
    """Entries of the FROMs around a node that a relation's name may mean there.

    The nearest, where it is certain that PostgreSQL takes it; else all that it could take.
    """
    found: list[exp.Expr] = []
    inside, below = node, node
    while (above := below.parent) is not None:
        if isinstance(below, exp.Join) and inside.arg_key == "on":
            near = _named(joined_by(above, below), name)
            if near:
                return found + near
        if isinstance(above, exp.Select):
            here = _named(items_of_query(above), name)
            found += here
            # From within a FROM, and from its WITH, not all of it is seen.
            if here and below.arg_key not in _SEES_PART_OF_FROM:
                return found
        inside, below = below, above
    return found


def _named(items: Iterable[exp.Expr], name: exp.Identifier) -> list[exp.Expr]:
    wanted = possible_names(name)
    return [
        item for item in items if (own := called(item)) is not None and possible_names(own) & wanted
    ]


def _around(node: exp.Expr) -> Iterator[exp.Expr]:
    """Every entry of every FROM around a node."""
    above = node.parent
    while above is not None:
        if isinstance(above, exp.Select):
            source = above.args.get("from_")
            for entry in (source, *(above.args.get("joins") or ())):
                if entry is not None:
                    yield from items_in(entry.this, within_names=True)
        above = above.parent
