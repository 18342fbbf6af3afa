"""Joins that leave the key aside: on columns that the foreign key of two tables does not name.

A small model joins `countries.Continent = car_makers.Country` where the catalogue says
`car_makers.Country` refers to `countries.CountryId`. Such a statement runs, and finds nothing or
nonsense. No gold statement of Spider and defog (805) joins two tables with a declared key between
them on anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.conditions import parts_of
from hexprefect.text2sql.from_clause import called, sources_of
from hexprefect.text2sql.key_graph import Join, joins_of
from hexprefect.text2sql.schema import Schema, Table

_GENERIC_NAMES = frozenset({"id", "key", "code", "no", "name", "uuid"})
"""Two columns called so have nothing in common but that."""


@dataclass(frozen=True, slots=True)
class _Side:
    alias: str
    called: exp.Identifier
    table: Table
    column: str


@dataclass(frozen=True, slots=True)
class _Equality:
    node: exp.EQ
    left: _Side
    right: _Side

    @property
    def names(self) -> dict[str, exp.Identifier]:
        """What the statement calls the two tables, by their full names."""
        return {side.table.full_name: side.called for side in (self.left, self.right)}


def joined_by_keys(sql: str, schema: Schema) -> str | None:
    """The statement with its tables joined by their foreign keys; None where they are, or may be.

    Only an equality that is the one condition on two tables is replaced, and only where the
    catalogue declares one foreign key between them, or, for two columns that are keys of other
    things, where one table leads from the one to the other. Left alone are: a table joined to
    itself, two columns that refer to the same third, two columns of one name that says something,
    a table that is joined to another alias by this key already, and any query with USING or
    NATURAL.

    Args:
        sql: a statement that the database accepts.
        schema: the whole schema.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        # To sqlglot `Singer` in a WITH and `singer` in a FROM are two; to a database they are one.
        named = {item.alias.casefold() for item in tree.find_all(exp.CTE, exp.Subquery)}
        changed = [
            _Query(scope.expression, scope, schema, named).join_by_keys()
            for scope in traverse_scope(tree)
            if isinstance(scope.expression, exp.Select)
        ]
    except (SqlglotError, ValueError, RecursionError):
        return None
    return tree.sql(dialect=schema.dialect) if any(changed) else None


class _Query:
    """One SELECT of a statement and the tables in its FROM.

    Args:
        select: its tree.
        scope: what its names mean.
        schema: the whole schema.
        named: names of the statement's own queries, in small letters.
    """

    def __init__(
        self, select: exp.Select, scope: Scope, schema: Schema, named: Collection[str]
    ) -> None:
        self.select = select
        self.schema = schema
        self.named = named
        self.tables = {
            alias: (called(source), table)
            for alias, (source, table) in sources_of(scope, schema).items()
            if source.db or source.name.casefold() not in named
        }

    def join_by_keys(self) -> bool:
        """Put its joins right in the tree; whether there was one to put right."""
        joins = self.select.args.get("joins") or ()
        if any(join.args.get("using") or join.method == "NATURAL" for join in joins):
            return False
        conditions = self._conditions()
        between: defaultdict[frozenset[str], list[exp.Expr]] = defaultdict(list)
        for part in conditions:
            for pair in combinations(sorted(self._mentioned(part)), 2):
                between[frozenset(pair)].append(part)
        lone = [parts[0] for parts in between.values() if len(parts) == 1]
        equalities = [found for part in lone if (found := self._equality(part)) is not None]
        changed = [self._join_by_key(equality, conditions) for equality in equalities]
        return any(changed)

    def _conditions(self) -> list[exp.Expr]:
        """What must hold for every row: the parts of each ON and of the WHERE."""
        whole = [join.args.get("on") for join in self.select.args.get("joins") or ()]
        if (where := self.select.args.get("where")) is not None:
            whole.append(where.this)
        return [
            part for condition in whole if condition is not None for part in parts_of(condition)
        ]

    def _mentioned(self, part: exp.Expr) -> set[str]:
        """Aliases of the tables whose columns a condition names, its inner queries included."""
        columns = part.find_all(exp.Column)
        return {side.alias for column in columns if (side := self._side(column)) is not None}

    def _equality(self, part: exp.Expr) -> _Equality | None:
        if not isinstance(part, exp.EQ):
            return None
        left, right = self._side(part.this), self._side(part.expression)
        if left is None or right is None or left.table is right.table:
            return None
        return _Equality(part, left, right)

    def _side(self, node: exp.Expr) -> _Side | None:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        wanted = node.table.casefold()
        owners = [
            _Side(alias, name, table, column.name)
            for alias, (name, table) in self.tables.items()
            if wanted in ("", alias.casefold()) and (column := table.column(node.name)) is not None
        ]
        return owners[0] if len(owners) == 1 else None

    def _join_by_key(self, equality: _Equality, conditions: Sequence[exp.Expr]) -> bool:
        left, right = equality.left, equality.right
        if self._refers(left) & self._refers(right) or _is_same_name(left, right):
            return False
        keys = [join for join in joins_of(left.table, self.schema) if join.table is right.table]
        if not keys:
            return self._join_over_a_third(equality)
        if len(keys) > 1 or keys[0].is_guess or _names(keys[0], left, right):
            return False
        if self._is_joined_otherwise(keys[0], equality, conditions):
            return False
        equality.node.replace(keys[0].equality(equality.names))
        return True

    def _is_joined_otherwise(
        self, key: Join, equality: _Equality, conditions: Sequence[exp.Expr]
    ) -> bool:
        """Whether this key already joins another alias of one of the two tables to the other."""
        here = {equality.left.alias, equality.right.alias}
        tables = {equality.left.table.full_name, equality.right.table.full_name}
        for part in conditions:
            other = self._equality(part)
            if other is None or not here & {other.left.alias, other.right.alias}:
                continue
            is_of_them = {other.left.table.full_name, other.right.table.full_name} == tables
            if is_of_them and _names(key, other.left, other.right):
                return True
        return False

    def _join_over_a_third(self, equality: _Equality) -> bool:
        """`singer.id = concert.id` becomes the join over `singer_in_concert`."""
        left, right = equality.left, equality.right
        join = equality.node.find_ancestor(exp.Join)
        if not self._is_key(left) or not self._is_key(right) or join is None:
            return False
        # Rows that a join outside keeps, or that one inside drops, would be others; so would `*`.
        if join.side or join.kind in ("SEMI", "ANTI") or self.select.is_star:
            return False
        last = join.this.alias_or_name
        if last not in (left.alias, right.alias):
            return False
        here, there = (left, right) if last == right.alias else (right, left)
        ways = [
            (first, second)
            for first in joins_of(here.table, self.schema)
            for second in joins_of(first.table, self.schema)
            if second.table is there.table
        ]
        if len(ways) != 1 or any(step.is_guess for step in ways[0]):
            return False
        first, second = ways[0]
        # Everyone of a country with everyone of the same country is no join of people.
        if first.table is first.referred and second.owner is there.table:
            return False
        taken = {*self.named, *(alias.casefold() for alias in self.tables)}
        is_there = any(table is first.table for _, table in self.tables.values())
        if is_there or first.table.name.casefold() in taken:
            return False
        self._insert_before(join, first, equality.names)
        third = exp.to_identifier(first.table.name, quoted=True)
        equality.node.replace(second.equality(equality.names | {first.table.full_name: third}))
        return True

    def _insert_before(self, join: exp.Join, step: Join, names: dict[str, exp.Identifier]) -> None:
        """Join the table of `step` before the one of `join`."""
        name = exp.to_identifier(step.table.name, quoted=True)
        owner = exp.to_identifier(step.table.schema, quoted=True) if step.table.schema else None
        condition = step.equality(names | {step.table.full_name: name})
        between = exp.Join(this=exp.Table(this=name, db=owner), on=condition, kind="INNER")
        joins = list(self.select.args["joins"])
        joins.insert(joins.index(join), between)
        self.select.set("joins", joins)
        self.tables[step.table.name] = (name, step.table)

    def _refers(self, side: _Side) -> set[tuple[str, str]]:
        """What a column refers to by the foreign keys of its table."""
        return {
            (join.referred.full_name, referred)
            for join in joins_of(side.table, self.schema)
            if join.owner is side.table
            for owner, referred in join.columns
            if owner.casefold() == side.column.casefold()
        }

    def _is_key(self, side: _Side) -> bool:
        primary = [name.casefold() for name in side.table.primary_key]
        return primary == [side.column.casefold()] or bool(self._refers(side))


def _names(join: Join, left: _Side, right: _Side) -> bool:
    """Whether an equality compares columns of this key."""
    pairs = {(owner.casefold(), referred.casefold()) for owner, referred in join.columns}
    owner, referred = (left, right) if join.owner is left.table else (right, left)
    return (owner.column.casefold(), referred.column.casefold()) in pairs


def _is_same_name(left: _Side, right: _Side) -> bool:
    """`customer_id = customer_id` may be a key that nobody declared; `id = id` is none."""
    name = left.column.casefold()
    return name == right.column.casefold() and name not in _GENERIC_NAMES
