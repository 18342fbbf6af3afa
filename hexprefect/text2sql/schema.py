"""A database's schema as plain values: what the guard resolves names against and prompts show."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns that refer to the columns of another table."""

    columns: tuple[str, ...]
    table: str
    referred_columns: tuple[str, ...]
    schema: str | None = None
    is_guess: bool = False
    """Inferred from names and types; the database does not hold it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, with a few of its values as examples."""

    name: str
    type: str
    nullable: bool = True
    comment: str | None = None
    samples: tuple[str, ...] = ()
    """SQL literals of frequent values, shortened: data from strangers, never instructions."""
    values: tuple[str, ...] = ()
    """Distinct texts of the column, for matching words of the question; bounded, not shown."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. `schema` is None in the database's default schema."""

    name: str
    columns: tuple[Column, ...]
    schema: str | None = None
    is_view: bool = False
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    comment: str | None = None
    reads: tuple[str, ...] | None = None
    """For a view, the full names of what it is made of; None when that is not known."""
    hidden_columns: tuple[str, ...] = ()
    """Columns that exist and may not be read here; they are in no prompt and no statement."""

    @property
    def full_name(self) -> str:
        """`schema.name`, or the bare name in the default schema. Unquoted: not for statements."""
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column | None:
        """The column of this name, else the first, ignoring case; None when there is none."""
        if exact := next((item for item in self.columns if item.name == name), None):
            return exact
        wanted = name.casefold()
        return next((item for item in self.columns if item.name.casefold() == wanted), None)


@dataclass(frozen=True, slots=True)
class Example:
    """A question with a statement that somebody who knows has verified."""

    question: str
    sql: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the people of a database mean by their words, and how they would ask."""

    glossary: tuple[tuple[str, str], ...] = ()
    """Word and meaning."""
    examples: tuple[Example, ...] = ()


NO_VOCABULARY = Vocabulary()


@dataclass(frozen=True, eq=False)
class Schema:
    """All tables and views that the connecting user sees outside the system's own schemas.

    Of a restricted schema, only those that may be read: nothing else exists for whoever is given
    it.
    """

    dialect: str
    tables: tuple[Table, ...]
    default_schema: str | None = None
    vocabulary: Vocabulary = NO_VOCABULARY
    is_restricted: bool = False
    identity: str = ""
    """Digest of which database this is and who reads it; empty when it is of no database."""
    _by_name: dict[str, Table] = field(init=False, repr=False, compare=False, default_factory=dict)
    _exact: dict[tuple[str | None, str], Table] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        for table in self.tables:
            owners = {table.schema}
            if table.schema is None:
                owners.add(self.default_schema or ("main" if self.dialect == "sqlite" else None))
            for owner in owners:
                full_name = table.name if owner is None else f"{owner}.{table.name}"
                self._by_name.setdefault(full_name.casefold(), table)
                self._exact[(owner, table.name)] = table

    @cached_property
    def fingerprint(self) -> str:
        """Changes exactly when names, types, keys or comments change; not with the rows."""
        structure = [
            (
                table.full_name,
                table.is_view,
                table.primary_key,
                table.comment,
                [(item.name, item.type, item.nullable, item.comment) for item in table.columns],
                [
                    (key.columns, key.schema, key.table, key.referred_columns, key.is_guess)
                    for key in table.foreign_keys
                ],
            )
            for table in self.tables
        ]
        return hashlib.sha256(repr((self.dialect, structure)).encode()).hexdigest()[:16]

    @cached_property
    def spellings(self) -> Mapping[str, frozenset[str]]:
        """How the catalogue spells a name of a schema, table or column, by its case-folded form."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for table in self.tables:
            for name in (table.schema, table.name, *(item.name for item in table.columns)):
                if name is not None:
                    found[name.casefold()].add(name)
        return {key: frozenset(names) for key, names in found.items()}

    @property
    def column_count(self) -> int:
        """Columns of all tables together."""
        return sum(len(table.columns) for table in self.tables)

    def table(self, name: str, schema: str | None = None) -> Table | None:
        """The table of exactly this name, else the first, ignoring case; None without any."""
        if (exact := self._exact.get((schema, name))) is not None:
            return exact
        full_name = name if schema is None else f"{schema}.{name}"
        return self._by_name.get(full_name.casefold())

    def restricted_to(self, full_names: Iterable[str]) -> Schema:
        """The same schema with only these tables, in the order they have here."""
        wanted = {name.casefold() for name in full_names}
        kept = tuple(table for table in self.tables if table.full_name.casefold() in wanted)
        return replace(self, tables=kept)
