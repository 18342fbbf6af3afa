"""Foreign keys that nobody declared, guessed from names and types.

Many warehouses declare none, and a model that is not told how two tables join invents it. A column
is taken for a reference when its name says so in one of four ways and its type fits the key of
exactly one table; whatever is ambiguous is left out. Guesses are marked wherever they are shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hexprefect.text2sql.names import words_of
from hexprefect.text2sql.schema import Column, ForeignKey, Table

_GENERIC_KEYS = frozenset({"id", "key", "code", "no", "nr", "number", "uuid", "pk", "name", "oid"})
"""A key of this name says nothing about its table."""
_KEY_ENDINGS = frozenset({"id", "key", "code", "no", "nr", "uuid", "fk"})
_FAMILIES = (
    ("INT", "number"), ("SERIAL", "number"), ("NUMERIC", "number"), ("DECIMAL", "number"),
    ("UUID", "uuid"), ("CHAR", "text"), ("TEXT", "text"), ("STRING", "text"), ("CLOB", "text"),
    ("BINARY", "bytes"), ("BLOB", "bytes"), ("BYTEA", "bytes"),
)  # fmt: skip

_OWN_NAME = "="
"""Stands before a table's own name among the targets."""

Words = tuple[str, ...]


def with_inferred_keys(tables: Sequence[Table]) -> tuple[Table, ...]:
    """The tables with the foreign keys that their names suggest, behind those that they declare."""
    targets = _targets(tables)
    return tuple(
        table if table.is_view else replace(table, foreign_keys=(*table.foreign_keys, *found))
        for table in tables
        for found in [tuple(_guesses(table, targets))]
    )


def _targets(tables: Iterable[Table]) -> dict[Words, list[tuple[Table, Column]]]:
    """Tables with a key of one column, by every name that a reference to it may have."""
    found: defaultdict[Words, list[tuple[Table, Column]]] = defaultdict(list)
    for table in tables:
        key = table.column(table.primary_key[0]) if len(table.primary_key) == 1 else None
        if key is None or table.is_view:
            continue
        name = _words(table.name)
        words = _words(key.name)
        names = {words} if words[-1:] and not set(words) <= _GENERIC_KEYS else set()
        if words and words[-1] in _KEY_ENDINGS:
            # customer.id or customer.customer_id: referred to as customer_id.
            names.add((*name, words[-1]))
        for item in names:
            found[item].append((table, key))
        # flight.airline, a number as airline.uid is: the table's own name.
        found[_OWN_NAME, *name].append((table, key))
    return found


def _guesses(
    table: Table, targets: dict[Words, list[tuple[Table, Column]]]
) -> Iterator[ForeignKey]:
    declared = {name for key in table.foreign_keys for name in key.columns}
    own_key = set(table.primary_key) if len(table.primary_key) == 1 else set()
    for column in table.columns:
        if column.name in declared | own_key:
            continue
        fitting = [
            (target, key)
            for target, key in _named(column.name, targets)
            if _family(column) == _family(key) and (target is not table or key.name != column.name)
        ]
        # The same name in several schemas means the one of its own.
        near = [item for item in fitting if item[0].schema == table.schema] or fitting
        if len(near) == 1:
            target, key = near[0]
            yield ForeignKey((column.name,), target.name, (key.name,), target.schema, is_guess=True)


def _named(
    column: str, targets: dict[Words, list[tuple[Table, Column]]]
) -> list[tuple[Table, Column]]:
    """Targets of this name, else those that it ends with: `home_team_id` refers to `team`.

    A table's own name counts only as the whole of a column's, and not in the plural: `employees`
    may say how many.
    """
    words, written = _words(column), tuple(words_of(column))
    for start in range(len(words) - 1):
        if words[start:] in targets:
            return targets[words[start:]]
    if words == written and (_OWN_NAME, *words) in targets:
        return targets[_OWN_NAME, *words]
    return targets.get(words, []) if words and words[-1] not in _GENERIC_KEYS else []


def _words(name: str) -> Words:
    words = words_of(name)
    # `customerid` is customer_id; `paid` is no reference to `pa`, which is no table's name.
    if len(words) == 1 and len(words[0]) > 4 and words[0].endswith("id"):
        words = [words[0][:-2], "id"]
    return tuple(_singular(word) for word in words)


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _family(column: Column) -> str:
    kind = column.type.upper()
    return next((family for part, family in _FAMILIES if part in kind), kind)
