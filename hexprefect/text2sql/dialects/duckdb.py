"""DuckDB: a file opened read-only in a locked configuration, one SELECT at a time.

The walls, outermost first: the file is attached read-only; external access is off, so no file, no
network and no extension can be reached; the configuration is locked, so neither can be turned on
again (https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview); DuckDB's own
parser must see exactly one SELECT; every statement runs on a cursor of its own, which takes its
variables and temporary objects with it; a timer interrupts it at its deadline.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.dialects.duckdb_catalogue import DEFAULT_SCHEMA, DuckDBCatalogue
from hexprefect.text2sql.dialects.duckdb_values import ExactColumns
from hexprefect.text2sql.dialects.files import file_state
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import RowCollector, Rows
from hexprefect.urls import shown_url

_MEMORY_LIMIT = "2GB"
"""For all statements of one file together; one that needs more fails instead of the process."""

CONFIGURATION: Mapping[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "allow_persistent_secrets": "false",
    # A name that is no table must not become a variable of this process.
    "python_enable_replacements": "false",
    # Nothing is spilled beside the file.
    "temp_directory": "",
    "memory_limit": _MEMORY_LIMIT,
}
"""All but the zone, which DuckDB takes only when it is open, and the lock, which comes last."""

_locking = threading.Lock()


class DuckDBAdapter:
    """A DuckDB file named by a SQLAlchemy URL such as `duckdb:////data/shop.duckdb`.

    Raises:
        CallerMistake: the URL names no file, or the file does not exist.
    """

    dialect = "duckdb"

    def __init__(self, url: sqlalchemy.URL) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("md:"):
            raise CallerMistake(
                f"The URL {shown_url(url)} names no DuckDB file.",
                remedy="Give a path: duckdb:///relative.duckdb or duckdb:////absolute.duckdb.",
            )
        self.path = Path(url.database).absolute()
        if not self.path.is_file():
            raise CallerMistake(
                f"The DuckDB file {self.path} does not exist.",
                remedy="Check the path: three slashes before a relative one, four before an "
                "absolute one.",
            )

    def open(self) -> DuckDBSession:
        """Open a session for foreign statements."""
        return DuckDBSession(self._connect())

    def reflection_engine(self) -> sqlalchemy.Engine:
        """Engine over the same file in the same locked configuration."""
        dialect = DuckDBCatalogue(dbapi=DuckDBCatalogue.import_dbapi())
        dialect.default_schema_name = DEFAULT_SCHEMA
        # Nothing is begun, so that nothing is to be rolled back.
        pool = sqlalchemy.pool.NullPool(
            lambda: _Interruptible(self._connect()),  # type: ignore[arg-type]
            dialect=dialect,
            reset_on_return=None,
        )
        return sqlalchemy.Engine(pool, dialect, sqlalchemy.make_url("duckdb://"))

    def interrupt(self, connection: _Interruptible) -> None:
        """Stop what runs on a connection of the reflection engine."""
        connection.interrupt()

    def visible_schemas(self, inspector: sqlalchemy.Inspector) -> tuple[str | None, ...]:
        """`main` first, without its name, then every other schema of the file."""
        others = [name for name in inspector.get_schema_names() if name != DEFAULT_SCHEMA]
        return (None, *sorted(others))

    def column_comments(self, connection: sqlalchemy.Connection) -> Mapping[tuple[str, str], str]:
        """None: they are reflected."""
        return {}

    def version(self, connection: sqlalchemy.Connection) -> str:
        """Changes with the file: while it is open here, nobody can write to it."""
        return file_state(self.path)

    def data_version(self) -> str | None:
        """As for the structure: nobody can write while it is open here."""
        return file_state(self.path)

    def _connect(self) -> duckdb.DuckDBPyConnection:
        connection: duckdb.DuckDBPyConnection | None = None
        try:
            connection = duckdb.connect(str(self.path), read_only=True, config=dict(CONFIGURATION))
            _lock(connection)
        except duckdb.Error as error:
            if connection is not None:
                connection.close()
            raise CallerMistake(
                f"The file {self.path} cannot be read as a DuckDB database: {_first_line(error)}.",
                remedy="Check that it is a DuckDB file that this user may read, and that no other "
                "process has it open for writing.",
            ) from error
        return connection


def _lock(connection: duckdb.DuckDBPyConnection) -> None:
    """Count moments in UTC wherever this runs; then nothing can be set any more.

    Connections to one file share their configuration: the first of them locks it.
    """
    with _locking:
        found = connection.execute("SELECT current_setting('lock_configuration')").fetchone()
        if found is None or not found[0]:
            connection.execute("SET GLOBAL TimeZone = 'UTC'")
            connection.execute("SET GLOBAL lock_configuration = true")


class _Interruptible:
    """A connection that knows the cursor it gave out last: each one is a connection of its own."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._cursor: duckdb.DuckDBPyConnection | None = None

    def cursor(self) -> duckdb.DuckDBPyConnection:
        self._cursor = self._connection.cursor()
        return self._cursor

    def interrupt(self) -> None:
        if self._cursor is not None:
            self._cursor.interrupt()

    def close(self) -> None:
        self._connection.close()


class DuckDBSession:
    """One connection to the locked file; each statement gets a cursor of its own."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._running: duckdb.DuckDBPyConnection | None = None
        self._stopped = False

    def run(self, sql: str, *, limits: Limits) -> Rows:
        """Run one statement; see `Session.run`."""
        started = time.monotonic()
        collector = RowCollector(limits)
        cursor = self._connection.cursor()
        self._stopped, self._running = False, cursor
        # Interrupts again and again: one that comes before the statement starts has no effect.
        timer = _Repeating(limits.timeout_s, cursor.interrupt)
        try:
            self._read(cursor, sql, collector, started + limits.timeout_s)
        except duckdb.Error as error:
            late = self._stopped or time.monotonic() - started >= limits.timeout_s
            raise _explain(error, limits, stopped=late) from error
        except (ValueError, OverflowError, UnicodeError, MemoryError) as error:
            raise StatementFailed(f"DuckDB's result cannot be read: {error}") from error
        finally:
            timer.stop()
            self._running = None
            cursor.close()
        return collector.finish(elapsed_s=time.monotonic() - started)

    def interrupt(self) -> None:
        """Stop the running statement."""
        self._stopped = True
        running = self._running
        if running is not None:
            with contextlib.suppress(duckdb.Error):
                running.interrupt()

    def close(self) -> None:
        """Close the connection; the last one gives the file back."""
        self._connection.close()

    def _read(
        self,
        cursor: duckdb.DuckDBPyConnection,
        sql: str,
        collector: RowCollector,
        deadline: float,
    ) -> None:
        bound = cursor.sql(_only_select(sql))
        collector.columns = tuple(bound.columns)
        exact = ExactColumns([str(kind) for kind in bound.types], collector.limits)
        cursor.execute(_only_select(exact.asked_of(sql) or sql))
        # Row by row: nobody knows how large the next one is.
        while (row := cursor.fetchone()) is not None:
            if not collector.add(exact.read(row)):
                return
            if self._stopped or time.monotonic() > deadline:
                raise duckdb.InterruptException("the result took too long to read")


class _Repeating:
    """Calls a function after a delay, and then every tenth of a second, until it is stopped."""

    def __init__(self, delay_s: float, call: Callable[[], object]) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._wait, args=(delay_s, call), daemon=True)
        self._thread.start()

    def _wait(self, delay_s: float, call: Callable[[], object]) -> None:
        while not self._done.wait(delay_s):
            with contextlib.suppress(duckdb.Error):
                call()
            delay_s = 0.1

    def stop(self) -> None:
        """Call no more, and wait until that is so: the cursor is closed next."""
        self._done.set()
        self._thread.join()


def _only_select(sql: str) -> duckdb.Statement:
    """DuckDB's own reading of the text, when it is one SELECT.

    Raises:
        StatementFailed: it is anything else, or several.
        duckdb.ParserException: it is no SQL.
    """
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise StatementFailed("DuckDB runs one SELECT here and nothing else.", cause="forbidden")
    return statements[0]


def _explain(error: duckdb.Error, limits: Limits, *, stopped: bool) -> StatementFailed:
    message = _first_line(error)
    if isinstance(error, duckdb.InterruptException) or stopped:
        return StatementFailed(
            f"The statement was stopped after {limits.timeout_s:g} s.",
            cause="timeout",
            remedy="Join on keys, filter earlier, or raise the limit timeout_s.",
        )
    if isinstance(error, duckdb.PermissionException) or "in read-only mode" in message:
        return StatementFailed(f"DuckDB: {message}", cause="forbidden")
    if "configuration has been locked" in message:
        return StatementFailed(f"DuckDB: {message}", cause="forbidden")
    return StatementFailed(f"DuckDB: {message}")


def _first_line(error: duckdb.Error) -> str:
    """The complaint and DuckDB's suggestion, without the echo of the statement."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines[:3] if line and not line.startswith(("LINE ", "^"))]
    return " ".join(kept).rstrip(".") or "unknown error"
