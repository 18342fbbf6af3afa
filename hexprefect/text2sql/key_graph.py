"""The foreign keys of a schema as a graph: how tables join, and over which others."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlglot import exp

from hexprefect.text2sql.names import quoted
from hexprefect.text2sql.rendering import qualified_name
from hexprefect.text2sql.schema import Schema, Table

_JOINS_IN_A_PATH = 4

_known_joins: WeakKeyDictionary[Schema, dict[str, list[Join]]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Join:
    """A step along a foreign key to `table`, which is one of the key's two ends."""

    table: Table
    owner: Table
    """Whose key it is."""
    referred: Table
    columns: tuple[tuple[str, str], ...]
    """Of the owner, and of the table that it refers to."""
    is_guess: bool = False
    """Nobody declared the key: its name suggests it."""

    def condition(self, dialect: str) -> str:
        """As a statement writes it, with the tables' full names."""
        here, there = qualified_name(self.owner, dialect), qualified_name(self.referred, dialect)
        return " AND ".join(
            f"{here}.{quoted(one, dialect)} = {there}.{quoted(other, dialect)}"
            for one, other in self.columns
        )

    def equality(self, names: Mapping[str, exp.Identifier]) -> exp.Condition:
        """As a tree, with what the statement calls the tables by their full names.

        Raises:
            KeyError: one of the two has no name there.
        """
        here, there = names[self.owner.full_name], names[self.referred.full_name]
        return exp.and_(
            *(
                exp.EQ(this=_column(here, one), expression=_column(there, other))
                for one, other in self.columns
            )
        )


def _column(table: exp.Identifier, name: str) -> exp.Column:
    return exp.column(exp.to_identifier(name, quoted=True), table=table.copy())


def join_path(start: Sequence[Table], goal: Table, schema: Schema) -> tuple[str, ...]:
    """Conditions of the shortest chain of keys from one of `start` to `goal`; empty without one."""
    return tuple(join.condition(schema.dialect) for join in join_chain(start, goal, schema))


def join_chain(start: Sequence[Table], goal: Table, schema: Schema) -> tuple[Join, ...]:
    """The shortest chain of foreign keys from one of `start` to `goal`; empty without one."""
    return reachable(start, schema, most=_JOINS_IN_A_PATH).get(goal.full_name, ())


def reachable(start: Sequence[Table], schema: Schema, *, most: int) -> dict[str, tuple[Join, ...]]:
    """The shortest chain of at most `most` keys to each table, by its full name, nearest first.

    The tables of `start` are reached by the empty chain.
    """
    routes: dict[str, tuple[Join, ...]] = {table.full_name: () for table in start}
    waiting = deque(start)
    while waiting:
        table = waiting.popleft()
        route = routes[table.full_name]
        if len(route) >= most:
            continue
        for join in joins_of(table, schema):
            if join.table.full_name not in routes:
                routes[join.table.full_name] = (*route, join)
                waiting.append(join.table)
    return routes


def direct_join(one: Table, other: Table, schema: Schema) -> Join | None:
    """The only foreign key between two tables; None where there is none, or more than one."""
    found = [join for join in joins_of(one, schema) if join.table is other]
    return found[0] if len(found) == 1 else None


def joins_of(table: Table, schema: Schema) -> Sequence[Join]:
    """The steps from a table, one for each of its keys and of those that refer to it."""
    return _joins(schema).get(table.full_name, ())


def _joins(schema: Schema) -> dict[str, list[Join]]:
    """The steps from each table, by its full name; kept with the schema."""
    if (known := _known_joins.get(schema)) is not None:
        return known
    joins: dict[str, list[Join]] = {}
    for table in schema.tables:
        for key in table.foreign_keys:
            target = schema.table(key.table, key.schema)
            if target is None or target is table:
                continue
            referred = key.referred_columns or target.primary_key
            columns = tuple(zip(key.columns, referred, strict=False))
            for here, there in ((table, target), (target, table)):
                step = Join(there, table, target, columns, key.is_guess)
                joins.setdefault(here.full_name, []).append(step)
    _known_joins[schema] = joins
    return joins
