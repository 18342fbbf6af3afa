"""Reading a database's schema and a few of its values. Blocking: call it in a thread."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy
from sqlalchemy.engine.interfaces import ReflectedColumn, ReflectedForeignKeyConstraint
from sqlalchemy.engine.reflection import ObjectKind

from hexprefect.text2sql.dialects.adapter import Adapter
from hexprefect.text2sql.inferred_keys import with_inferred_keys
from hexprefect.text2sql.patience import Patience, Watcher
from hexprefect.text2sql.schema import Column, ForeignKey, Schema, Table
from hexprefect.text2sql.view_sources import with_sources

SAMPLES_A_COLUMN = 3
"""Three values a column took a 1.5B model from 33 to 41 of 60 questions; more cost prompt."""
_SAMPLED_ROWS = 2_000
"""Rows of each table that samples and values are taken from."""
_VALUES_A_COLUMN = 500
_VALUES_A_DATABASE = 100_000
_SAMPLED_TABLES = 200
"""Beyond this many tables only structure is read; a catalogue of thousands must open in seconds."""
_DEFINED_VIEWS = 500
"""Each takes a query; views beyond them count as made of something unknown."""
_SAMPLE_CHARACTERS = 40
_VALUE_CHARACTERS = 80


def reflect(adapter: Adapter, patience: Patience | None = None) -> Schema:
    """Reflect every visible table and view with keys, comments and sample values.

    A table or view whose values cannot be read in time is shown without them.

    Args:
        adapter: of the database.
        patience: how long the values of each table may take.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the catalogue cannot be read.
        ReadingStopped: nobody waits for it any more.
    """
    patience = patience or Patience()
    engine = adapter.reflection_engine()
    try:
        with (
            engine.connect() as connection,
            Watcher(lambda: adapter.interrupt(_driver_of(connection)), patience.stop) as watcher,
        ):
            inspector = sqlalchemy.inspect(connection)
            comments = adapter.column_comments(connection)
            structure = [
                table
                for schema in adapter.visible_schemas(inspector)
                for table in _tables(inspector, schema, comments)
            ]
            default = inspector.default_schema_name if adapter.dialect != "sqlite" else None
            sourced = with_sources(
                with_inferred_keys(structure),
                _definitions(inspector, structure),
                dialect=adapter.dialect,
                default_schema=default,
            )
            tables = _with_values(
                sourced, lambda table: _first_rows(connection, table, patience, watcher)
            )
            # A query that was interrupted because nobody waits is no catalogue without its answer.
            patience.check()
    except sqlalchemy.exc.SQLAlchemyError:
        patience.check()
        raise
    finally:
        engine.dispose()
    return Schema(adapter.dialect, tuple(tables), default)


def _tables(
    inspector: sqlalchemy.Inspector,
    schema: str | None,
    column_comments: Mapping[tuple[str, str], str],
) -> list[Table]:
    with warnings.catch_warnings():
        # Types that SQLAlchemy does not know are shown by the name the database gives them.
        warnings.simplefilter("ignore", sqlalchemy.exc.SAWarning)
        columns = _columns(inspector, schema)
        primary_keys = inspector.get_multi_pk_constraint(schema=schema)
        foreign_keys = inspector.get_multi_foreign_keys(schema=schema)
        comments = _comments(inspector, schema)
    views = {*inspector.get_view_names(schema), *_materialized(inspector, schema)}
    return [
        Table(
            name=key[1],
            schema=schema,
            is_view=key[1] in views,
            columns=tuple(
                Column(
                    item["name"],
                    _type(item["type"]),
                    item["nullable"],
                    item.get("comment") or column_comments.get((key[1], item["name"])),
                )
                for item in columns[key]
            ),
            primary_key=tuple(
                primary_keys[key]["constrained_columns"] if key in primary_keys else ()
            ),
            foreign_keys=tuple(_foreign_key(item) for item in foreign_keys.get(key, ())),
            comment=comments.get(key[1]),
        )
        for key in sorted(columns, key=lambda key: key[1])
    ]


def _columns(
    inspector: sqlalchemy.Inspector, schema: str | None
) -> dict[tuple[str | None, str], list[ReflectedColumn]]:
    """All at once where that works; else one by one, without the views that are broken."""
    try:
        return inspector.get_multi_columns(schema=schema, kind=ObjectKind.ANY)
    except sqlalchemy.exc.SQLAlchemyError:
        found = {}
        for name in (*inspector.get_table_names(schema), *inspector.get_view_names(schema)):
            with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
                found[(schema, name)] = inspector.get_columns(name, schema)
        return found


def _foreign_key(found: ReflectedForeignKeyConstraint) -> ForeignKey:
    return ForeignKey(
        columns=tuple(found["constrained_columns"]),
        table=found["referred_table"],
        referred_columns=tuple(found["referred_columns"]),
        schema=found["referred_schema"],
    )


def _comments(inspector: sqlalchemy.Inspector, schema: str | None) -> dict[str, str]:
    try:
        found = inspector.get_multi_table_comment(schema=schema)
    except NotImplementedError:
        return {}
    return {key[1]: text for key, item in found.items() if (text := item.get("text"))}


def _materialized(inspector: sqlalchemy.Inspector, schema: str | None) -> Sequence[str]:
    try:
        return inspector.get_materialized_view_names(schema)
    except NotImplementedError:
        return ()


def _definitions(inspector: sqlalchemy.Inspector, tables: Sequence[Table]) -> dict[str, str]:
    """The statements behind the views, by full name; without those that may not be seen."""
    found: dict[str, str] = {}
    views = [table for table in tables if table.is_view]
    for view in views[:_DEFINED_VIEWS]:
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError, NotImplementedError):
            found[view.full_name] = inspector.get_view_definition(view.name, view.schema) or ""
    return found


def _type(found: sqlalchemy.types.TypeEngine[object]) -> str:
    if isinstance(found, sqlalchemy.types.NullType):
        return ""
    try:
        return str(found)
    except sqlalchemy.exc.SQLAlchemyError:
        return type(found).__name__.upper()


def _with_values(
    tables: Sequence[Table], first_rows: Callable[[Table], Sequence[Sequence[Any]]]
) -> list[Table]:
    """Add samples to the first tables, and values while the whole budget lasts."""
    left = _VALUES_A_DATABASE
    filled = []
    for number, table in enumerate(tables):
        if number >= _SAMPLED_TABLES:
            filled.append(table)
            continue
        rows = first_rows(table)
        columns = []
        for index, column in enumerate(table.columns):
            frequent = _by_frequency([row[index] for row in rows])
            values = _texts(frequent)[: min(left, _VALUES_A_COLUMN)]
            left -= len(values)
            samples = tuple(literal(value) for value in frequent[:SAMPLES_A_COLUMN])
            columns.append(replace(column, samples=samples, values=values))
        filled.append(replace(table, columns=tuple(columns)))
    return filled


def _driver_of(connection: sqlalchemy.Connection) -> Any:
    return connection.connection.dbapi_connection


def _first_rows(
    connection: sqlalchemy.Connection, table: Table, patience: Patience, watcher: Watcher
) -> Sequence[Sequence[Any]]:
    columns: list[sqlalchemy.ColumnClause[Any]] = [
        sqlalchemy.column(item.name) for item in table.columns
    ]
    selected = sqlalchemy.select(*columns).select_from(
        sqlalchemy.table(table.name, schema=table.schema)
    )
    try:
        with patience.piece(watcher):
            return connection.execute(selected.limit(_SAMPLED_ROWS)).all()
    except (sqlalchemy.exc.SQLAlchemyError, ValueError, UnicodeError):
        # A table that may not be read, a view that is broken or takes too long: its structure is
        # still shown.
        patience.check()
        connection.rollback()
        return ()


def _by_frequency(values: Sequence[object]) -> list[object]:
    """Distinct values, the most frequent first, ties in order of appearance."""
    counts: dict[object, int] = {}
    for value in values:
        if value is None or isinstance(value, bytes | memoryview | dict | list):
            continue
        counts[value] = counts.get(value, 0) + 1
    return sorted(counts, key=lambda value: -counts[value])


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(
        value for value in values if isinstance(value, str) and 0 < len(value) <= _VALUE_CHARACTERS
    )


def literal(value: object) -> str:
    """A value as a SQL literal on one line, shortened so that it stays an example.

    Line breaks and other control characters become spaces: a cell cannot end the comment it is
    shown in, and so cannot pose as a part of the prompt.
    """
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float() | decimal.Decimal():
            return str(value)
        case datetime.datetime() | datetime.date() | datetime.time():
            return (
                f"'{value.isoformat(sep=' ')}'"
                if isinstance(value, datetime.datetime)
                else f"'{value.isoformat()}'"
            )
        case _:
            text = "".join(item if item.isprintable() else " " for item in str(value))
            if len(text) > _SAMPLE_CHARACTERS:
                text = text[:_SAMPLE_CHARACTERS] + "…"
            return "'" + text.replace("'", "''") + "'"
