"""Mending a statement that takes a column from a table that lacks it, without asking the model.

Where the catalogue leaves one way only, a model is not needed to find it: the column is spelt with
or without underscores, belongs to another table of the query, or to one that its foreign keys
reach; a join on a column that is not there is the join on the key. What is mended goes through the
guard and runs like any other draft, and counts only when it returns rows; else the model corrects
what it wrote, as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from hexprefect.text2sql.diagnosis import misplaced_in
from hexprefect.text2sql.from_clause import called, tables_of
from hexprefect.text2sql.key_graph import Join, direct_join, join_chain, reachable
from hexprefect.text2sql.schema import Schema, Table

_LONGEST_CHAIN = 2
"""Tables joined for one column: a longer way is rarely the one that was meant."""


def repaired(sql: str, schema: Schema) -> str | None:
    """The statement with every misplaced column in its place; None where that is not clear.

    Args:
        sql: one that the database refused for a name.
        schema: the whole schema.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=schema.dialect)
        scopes = traverse_scope(tree)
        mended = [_Query(scope, schema).mend() for scope in scopes]
    except (SqlglotError, ValueError, KeyError, RecursionError, _Unclear):
        return None
    return tree.sql(dialect=schema.dialect) if any(mended) else None


class _Unclear(Exception):
    """There are several ways to mend a statement, or none."""


@dataclass(frozen=True, slots=True)
class _Owner:
    alias: str
    column: str
    """As its table spells it."""
    joins: tuple[Join, ...] = ()
    """What must be joined first; empty when the query has the table."""


class _Query:
    """One SELECT of a statement and the tables in its FROM."""

    def __init__(self, scope: Scope, schema: Schema) -> None:
        self.scope = scope
        self.schema = schema
        self.tables = tables_of(scope, schema)

    def _table(self, alias: str) -> Table | None:
        """By its alias, whose case means nothing here."""
        wanted = alias.casefold()
        return next((t for name, t in self.tables.items() if name.casefold() == wanted), None)

    def mend(self) -> bool:
        """Put its misplaced columns right in the tree; whether there were any.

        Raises:
            _Unclear: one of them has no place, or more than one.
        """
        columns = list(misplaced_in(self.scope, self.schema))
        if not columns:
            return False
        select = self.scope.expression
        if not isinstance(select, exp.Select):
            raise _Unclear
        self._qualify()
        for column, _ in columns:
            if not self._mend_join(column):
                self._move(column, select)
        return True

    def _qualify(self) -> None:
        """Give bare columns their table, before a further one makes them ambiguous."""
        for column in self.scope.columns:
            if column.table or not isinstance(column.this, exp.Identifier):
                continue
            if column.find_ancestor(exp.Select) is not self.scope.expression:
                continue  # Of an inner query, which may have a table with it.
            owners = [name for name, table in self.tables.items() if table.column(column.name)]
            if len(owners) == 1:
                column.set("table", exp.to_identifier(owners[0]))

    def _mend_join(self, column: exp.Column) -> bool:
        """A join of two tables on a column that one lacks becomes the join on their key."""
        equality = column.parent
        if not isinstance(equality, exp.EQ) or equality.find_ancestor(exp.Join) is None:
            return False
        left, right = equality.this, equality.expression
        if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
            return False
        one, other = self._table(left.table), self._table(right.table)
        if one is None or other is None or left.table == right.table:
            return False
        join = direct_join(one, other, self.schema)
        if join is None:
            return False
        sides = {one.full_name: left.args["table"], other.full_name: right.args["table"]}
        equality.replace(join.equality(sides))
        return True

    def _move(self, column: exp.Column, select: exp.Select) -> None:
        owner = self._owner(column)
        if owner.column != column.name:
            column.set("this", exp.to_identifier(owner.column, quoted=True))
        for join in owner.joins:
            names = {table.full_name: self._called(name) for name, table in self.tables.items()}
            names[join.table.full_name] = exp.to_identifier(join.table.name, quoted=True)
            target = exp.Table(
                this=exp.to_identifier(join.table.name, quoted=True),
                db=exp.to_identifier(join.table.schema, quoted=True) if join.table.schema else None,
            )
            select.join(target, on=join.equality(names), join_type="inner", copy=False)
            self.tables[join.table.name] = join.table
        column.set("table", self._called(owner.alias).copy())

    def _called(self, alias: str) -> exp.Identifier:
        """What a table of the query is called: as it stands there, or quoted where it is new."""
        for name, source in self.scope.sources.items():
            if name.casefold() == alias.casefold() and isinstance(source, exp.Table):
                return called(source)
        return exp.to_identifier(alias, quoted=True)

    def _owner(self, column: exp.Column) -> _Owner:
        """Where a column belongs: in the query itself, else the one nearest by keys."""
        name = column.name
        own = self._table(column.table)
        if column.table and own is None:
            return self._owner_named(column)
        if own is not None and (found := column_like(own, name)) is not None:
            return _Owner(column.table, found)
        here = [
            _Owner(alias, found)
            for alias, table in self.tables.items()
            if (found := column_like(table, name)) is not None
        ]
        if len(here) == 1:
            return here[0]
        start = [own] if own is not None else list(self.tables.values())
        chains = self._chains(start, name) or self._chains(list(self.tables.values()), name)
        if here or not chains or (len(chains) > 1 and len(chains[0]) == len(chains[1])):
            raise _Unclear
        return self._reached_by(chains[0], name)

    def _owner_named(self, column: exp.Column) -> _Owner:
        """The table that the statement names without having it in its FROM."""
        table = self.schema.table(column.table)
        if table is None:
            raise _Unclear
        chain = join_chain(list(self.tables.values()), table, self.schema)
        if not 0 < len(chain) <= _LONGEST_CHAIN:
            raise _Unclear
        return self._reached_by(chain, column.name)

    def _reached_by(self, chain: tuple[Join, ...], name: str) -> _Owner:
        taken = {alias.casefold() for alias in self.tables}
        owner = chain[-1].table
        found = column_like(owner, name)
        if found is None or any(join.table.name.casefold() in taken for join in chain):
            raise _Unclear
        return _Owner(owner.name, found, chain)

    def _chains(self, start: Sequence[Table], name: str) -> list[tuple[Join, ...]]:
        """Ways to each table with such a column, the shortest first."""
        chains = reachable(start, self.schema, most=_LONGEST_CHAIN).values()
        ending = (chain for chain in chains if chain and column_like(chain[-1].table, name))
        return sorted(ending, key=len)


def column_like(table: Table, name: str) -> str | None:
    """The table's column of this name, also with other letter case, underscores or spaces.

    `pet_type` finds `PetType`; None where two columns differ in no more than that.
    """
    if (exact := table.column(name)) is not None:
        return exact.name
    wanted = _plain(name)
    found = [column.name for column in table.columns if _plain(column.name) == wanted]
    return found[0] if len(found) == 1 else None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
