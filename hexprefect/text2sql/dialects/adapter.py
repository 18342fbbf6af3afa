"""What every kind of database must offer; one module of this package for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import sqlalchemy

from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import Rows


class Session(Protocol):
    """One connection that can read and do nothing else. Used by one thread at a time."""

    def run(self, sql: str, *, limits: Limits) -> Rows:
        """Run exactly one statement, blocking, within the limits.

        Raises:
            StatementFailed: the database refused it, failed, or reached the time limit.
        """

    def interrupt(self) -> None:
        """Stop the running statement on the server. Called from another thread; may block."""

    def close(self) -> None:
        """Give the connection back to the operating system."""


class Adapter(Protocol):
    """How one kind of database is opened, reflected and guarded."""

    @property
    def dialect(self) -> str:
        """sqlglot's name of the SQL dialect, for example `sqlite` or `postgres`."""

    def open(self) -> Session:
        """Open a read-only session for statements that we did not write. Blocks.

        Raises:
            CallerMistake: the database cannot be reached; the message names it without password.
        """

    def reflection_engine(self) -> sqlalchemy.Engine:
        """An engine for SQLAlchemy's own catalogue queries, read-only as well."""

    def interrupt(self, connection: Any) -> None:
        """Stop what runs on a driver's connection of that engine; nothing when nothing runs.

        Called from another thread; may block, and may fail with the driver's error.
        """

    def visible_schemas(self, inspector: sqlalchemy.Inspector) -> tuple[str | None, ...]:
        """Schemas that belong to the user; None stands for the one that needs no qualification."""

    def column_comments(self, connection: sqlalchemy.Connection) -> Mapping[tuple[str, str], str]:
        """Comments that SQLAlchemy does not reflect, by table and column name."""

    def version(self, connection: sqlalchemy.Connection) -> str:
        """Changes whenever names, types, keys or comments change; cheap next to reflecting them."""

    def data_version(self) -> str | None:
        """Changes whenever a row changes; None where the engine does not tell. Blocks briefly."""
