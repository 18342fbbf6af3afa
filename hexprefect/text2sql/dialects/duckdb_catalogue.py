"""DuckDB's catalogue for SQLAlchemy: enough of a dialect to reflect a schema and select from it.

duckdb-engine reads a catalogue of PostgreSQL that DuckDB no longer has all of. DuckDB's own table
functions say more (comments, the columns a foreign key refers to) and do it for all tables at once.
https://duckdb.org/docs/stable/sql/meta/duckdb_table_functions
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, ClassVar

import duckdb
from sqlalchemy import Connection, text
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.interfaces import (
    DBAPIConnection,
    ReflectedColumn,
    ReflectedForeignKeyConstraint,
    ReflectedPrimaryKeyConstraint,
    ReflectedTableComment,
)
from sqlalchemy.sql.compiler import IdentifierPreparer
from sqlalchemy.types import UserDefinedType

DEFAULT_SCHEMA = "main"

Key = tuple[str | None, str]


@cache
def duckdb_reserved_words() -> frozenset[str]:
    """Words that the installed DuckDB does not read as a name, in lower case."""
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'"
        ).fetchall()
    return frozenset(row[0] for row in rows)


class NamedType(UserDefinedType[object]):
    """A type by the name that the database gives it, for example `STRUCT(a INTEGER)`."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: object) -> str:
        """The name as it stands in a definition."""
        return self.name


class _Preparer(IdentifierPreparer):
    reserved_words: ClassVar[set[str]] = set(duckdb_reserved_words())  # type: ignore[misc]


class DuckDBCatalogue(DefaultDialect):
    """What reflection and a SELECT need; it writes nothing and begins no transaction."""

    name = "duckdb"
    driver = "duckdb"
    preparer = _Preparer
    supports_statement_cache = True
    supports_native_decimal = True
    default_paramstyle = "qmark"

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The driver, which is a DBAPI."""
        return duckdb

    def do_begin(self, dbapi_connection: Any) -> None:
        """Nothing to begin: every statement is a transaction of its own."""

    def do_commit(self, dbapi_connection: Any) -> None:
        """Nothing to commit."""

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Nothing to roll back."""

    def _get_default_schema_name(self, connection: Connection) -> str:
        return DEFAULT_SCHEMA

    def _get_server_version_info(self, connection: Connection) -> tuple[int, ...]:
        return tuple(int(part) for part in duckdb.__version__.split(".") if part.isdigit())

    def get_isolation_level_values(self, dbapi_conn: DBAPIConnection) -> Sequence[Any]:
        """None can be chosen."""
        return ()

    def get_schema_names(self, connection: Connection, **_: Any) -> list[str]:
        """Every schema of the opened file that is not DuckDB's own."""
        return [
            row[0]
            for row in connection.execute(
                text(
                    "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal "
                    "AND database_name = current_database() ORDER BY 1"
                )
            )
        ]

    def get_table_names(
        self, connection: Connection, schema: str | None = None, **_: Any
    ) -> list[str]:
        """Tables of a schema."""
        return [row[0] for row in self._rows(connection, "duckdb_tables()", "table_name", schema)]

    def get_view_names(
        self, connection: Connection, schema: str | None = None, **_: Any
    ) -> list[str]:
        """Views of a schema."""
        return [row[0] for row in self._rows(connection, "duckdb_views()", "view_name", schema)]

    def get_view_definition(
        self, connection: Connection, view_name: str, schema: str | None = None, **_: Any
    ) -> str:
        """The statement that made the view."""
        found = self._rows(connection, "duckdb_views()", "view_name, sql", schema)
        return next((sql or "" for name, sql in found if name == view_name), "")

    def get_multi_columns(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterable[tuple[Key, list[ReflectedColumn]]]:
        """Columns of every table and view."""
        found: dict[Key, list[ReflectedColumn]] = {}
        for table, name, kind, nullable, comment, default in self._rows(
            connection,
            "duckdb_columns()",
            "table_name, column_name, data_type, is_nullable, comment, column_default",
            schema,
            order="table_name, column_index",
        ):
            found.setdefault((schema, table), []).append(
                {
                    "name": name,
                    "type": NamedType(kind),
                    "nullable": bool(nullable),
                    "default": default,
                    "comment": comment,
                }
            )
        return found.items()

    def get_multi_pk_constraint(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterable[tuple[Key, ReflectedPrimaryKeyConstraint]]:
        """Primary keys of every table that has one."""
        return [
            ((schema, table), {"constrained_columns": list(columns), "name": name})
            for table, kind, columns, name, _target, _referred in self._constraints(
                connection, schema
            )
            if kind == "PRIMARY KEY"
        ]

    def get_multi_foreign_keys(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterable[tuple[Key, list[ReflectedForeignKeyConstraint]]]:
        """Foreign keys; DuckDB's stay within their schema."""
        found: dict[Key, list[ReflectedForeignKeyConstraint]] = {}
        for table, kind, columns, name, target, referred in self._constraints(connection, schema):
            if kind == "FOREIGN KEY":
                found.setdefault((schema, table), []).append(
                    {
                        "name": name,
                        "constrained_columns": list(columns),
                        "referred_schema": schema,
                        "referred_table": target,
                        "referred_columns": list(referred or ()),
                        "options": {},
                    }
                )
        return found.items()

    def get_multi_table_comment(
        self,
        connection: Connection,
        *,
        schema: str | None = None,
        filter_names: Collection[str] | None = None,
        **_: Any,
    ) -> Iterable[tuple[Key, ReflectedTableComment]]:
        """Comments on tables and views."""
        tables = self._rows(connection, "duckdb_tables()", "table_name, comment", schema)
        views = self._rows(connection, "duckdb_views()", "view_name, comment", schema)
        return [((schema, name), {"text": comment}) for name, comment in (*tables, *views)]

    def _constraints(self, connection: Connection, schema: str | None) -> Collection[Any]:
        return self._rows(
            connection,
            "duckdb_constraints()",
            "table_name, constraint_type, constraint_column_names, constraint_name, "
            "referenced_table, referenced_column_names",
            schema,
            order="table_name, constraint_index",
        )

    def _rows(
        self,
        connection: Connection,
        function: str,
        columns: str,
        schema: str | None,
        order: str = "1",
    ) -> Collection[Any]:
        own = "" if function == "duckdb_constraints()" else "NOT internal AND "
        return connection.execute(
            text(
                f"SELECT {columns} FROM {function} WHERE {own}schema_name = :schema "
                f"AND database_name = current_database() ORDER BY {order}"
            ),
            {"schema": schema or DEFAULT_SCHEMA},
        ).fetchall()
