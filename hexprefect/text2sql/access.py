"""Which tables and columns of a database may be read: an allow-list, kept by the schema itself.

A schema that is restricted holds nothing else: the prompt does not show it, the guard does not find
it, and a table of which only some columns may be read is read through a query that selects exactly
these (see `hexprefect.text2sql.resolution`). So there is no expression whose columns would have to
be traced, and none that can be overlooked: `*`, a whole row, a NATURAL JOIN see only what is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.schema import ForeignKey, Schema, Table

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What may be read. Names are those of the catalogue; a case that differs is let pass.

    A view that is named in `tables` may be read, whatever it is made of: naming it grants it, as
    in SQL. One that is only let in with its schema may be read when every table that it reads may
    be, whole.
    """

    schemas: tuple[str, ...] | None = None
    """Names of schemas; an empty list leaves the default schema, None leaves all."""
    tables: tuple[str, ...] = ()
    """`schema.table`, or `table` in the default schema; empty for all of the schemas."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For a table, its columns that may be read; a table that is not named keeps all, and one that
    is named twice (`t` and `schema.t`) keeps those in both lists."""

    @property
    def is_open(self) -> bool:
        """Whether nothing is held back."""
        return self.schemas is None and not self.tables and not self.columns


def restricted(schema: Schema, access: Access) -> Schema:
    """The schema with only what may be read. Restricting once more can only take away."""
    if access.is_open:
        return schema
    named = {found.full_name for name in access.tables if (found := _named(schema, name))}
    kept = {
        table.full_name: table
        for table in schema.tables
        if _in_schemas(table, schema, access) and (not access.tables or table.full_name in named)
    }
    for name, names in access.columns.items():
        if (found := _named(schema, name)) is not None and found.full_name in kept:
            kept[found.full_name] = _with_columns(kept[found.full_name], names)
    for full_name, table in list(kept.items()):
        if table.is_view and full_name not in named and not _reads_only(table, schema, kept):
            del kept[full_name]
    visible = Schema(
        schema.dialect,
        tuple(kept.values()),
        schema.default_schema,
        vocabulary=schema.vocabulary,
        is_restricted=True,
        identity=schema.identity,
    )
    return replace(
        visible,
        tables=tuple(_with_keys(table, visible) for table in visible.tables),
    )


def check_names(schema: Schema, access: Sequence[Access]) -> None:
    """Hold the names of allow-lists against the catalogue.

    A list of columns whose table is misspelt, or was renamed, would hold nothing back.

    Args:
        schema: the whole catalogue.
        access: what may be read of it.

    Raises:
        CallerMistake: names that the catalogue has not. Near ones are named as far as they may be
            read; all of them are in the log, for whoever keeps the lists.
    """
    unknown = tuple(dict.fromkeys(name for item in access for name in unknown_names(schema, item)))
    if not unknown:
        return
    visible = schema
    for item in access:
        visible = restricted(visible, item)
    logger.error("names that the catalogue has not: %s", "; ".join(_with_near(unknown, schema)))
    raise CallerMistake(
        "What may be read of this database is given in names that it has not: "
        f"{'; '.join(_with_near(unknown, visible))}.",
        remedy="Correct the schemas, tables and columns of its Text2SQLDatabase block.",
    )


def unknown_names(schema: Schema, access: Access) -> tuple[str, ...]:
    """Names of the allow-list that the catalogue has not: misspelt, or dropped since."""
    known = {table.schema or schema.default_schema for table in schema.tables}
    # A default schema without a name (SQLite) may be called anything.
    are_named = schema.default_schema is not None
    return (
        *(
            name
            for name in access.schemas or ()
            if are_named and name not in {*known, schema.default_schema}
        ),
        *(name for name in access.tables if _named(schema, name) is None),
        *(name for name in access.columns if _named(schema, name) is None),
        *(
            f"{name}.{column}"
            for name, columns in access.columns.items()
            for column in columns
            if (table := _named(schema, name)) is not None and table.column(column) is None
        ),
    )


def _with_near(names: Sequence[str], schema: Schema) -> list[str]:
    """Each name with those of the schema that resemble it."""
    known = {table.full_name for table in schema.tables}
    known |= {table.schema for table in schema.tables if table.schema is not None}
    columns = {
        f"{table.full_name}.{column.name}" for table in schema.tables for column in table.columns
    }
    found = []
    for name in names:
        near = get_close_matches(name, known, n=3) or get_close_matches(name, columns, n=3)
        found.append(f"{name} (near: {', '.join(near)})" if near else name)
    return found


def _named(schema: Schema, name: str) -> Table | None:
    owner, _, bare = name.rpartition(".")
    return schema.table(bare, owner or None) or schema.table(name)


def _in_schemas(table: Table, schema: Schema, access: Access) -> bool:
    if access.schemas is None:
        return True
    if table.schema is None:
        # A default schema without a name (SQLite) cannot be left out by naming others.
        return not access.schemas or schema.default_schema in (None, *access.schemas)
    return table.schema in access.schemas


def _with_columns(table: Table, names: tuple[str, ...]) -> Table:
    allowed = [table.column(name) for name in names]
    shown = tuple(item for item in table.columns if item in allowed)
    hidden = tuple(item.name for item in table.columns if item not in shown)
    return replace(table, columns=shown, hidden_columns=(*table.hidden_columns, *hidden))


def _with_keys(table: Table, visible: Schema) -> Table:
    """Without the keys that name what is hidden."""

    def has(found: Table | None) -> Callable[[str], bool]:
        return lambda name: found is not None and found.column(name) is not None

    def is_visible(key: ForeignKey) -> bool:
        target = visible.table(key.table, key.schema)
        return all(map(has(table), key.columns)) and all(map(has(target), key.referred_columns))

    primary = table.primary_key if all(map(has(table), table.primary_key)) else ()
    keys = tuple(key for key in table.foreign_keys if is_visible(key))
    return replace(table, primary_key=primary, foreign_keys=keys)


def _reads_only(
    view: Table, schema: Schema, kept: Mapping[str, Table], below: tuple[str, ...] = ()
) -> bool:
    """Whether a view is made of nothing but whole tables that may be read."""
    if view.reads is None or view.full_name in below:
        return False
    for name in view.reads:
        table = kept.get(name)
        if table is None or table.hidden_columns:
            return False
        if table.is_view and not _reads_only(table, schema, kept, (*below, view.full_name)):
            return False
    return True
