"""SQLite: a file opened read-only, behind an authorizer that lets through nothing but reading.

The walls, outermost first: `mode=ro` in the URI, `PRAGMA query_only`, the authorizer
(https://sqlite.org/c3ref/set_authorizer.html), the run-time limits
(https://sqlite.org/c3ref/c_limit_attached.html) and a progress handler that ends a statement at its
deadline. Each holds without the guard in front of them.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import sqlalchemy
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.dialects.files import file_identity, file_state
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import RowCollector, Rows
from hexprefect.urls import shown_url

DENIED_FUNCTIONS = frozenset(
    {
        "load_extension",
        "readfile",
        "writefile",
        "edit",
        "eval",
        "fts3_tokenizer",
        "lsdir",
        "fsdir",
        "zipfile",
        "sqlar_uncompress",
    }
)
_OPERATIONS_BETWEEN_CLOCK_CHECKS = 4_000
_MAX_VALUE_BYTES = 32_000_000
"""A single value inside SQLite, so that `zeroblob(1e9)` cannot take the process's memory."""

_BYTES_A_CHARACTER = 4

_LIMITS = (
    (sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES),
    (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 200_000),
    (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    (sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 500),
    (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 2_000),
    (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
)


class SQLiteAdapter:
    """A SQLite file named by a SQLAlchemy URL such as `sqlite:////data/shop.sqlite`.

    Raises:
        CallerMistake: the URL names no file, or the file does not exist or is not a database.
    """

    dialect = "sqlite"

    def __init__(self, url: sqlalchemy.URL) -> None:
        if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
            raise CallerMistake(
                f"The URL {shown_url(url)} names no SQLite file.",
                remedy="Give a path: sqlite:///relative.sqlite or sqlite:////absolute.sqlite.",
            )
        self.path = Path(url.database).absolute()
        if not self.path.is_file():
            raise CallerMistake(
                f"The SQLite file {self.path} does not exist.",
                remedy="Check the path: three slashes before a relative one, four before an "
                "absolute one.",
            )

    def open(self) -> SQLiteSession:
        """Open a session for foreign statements."""
        return SQLiteSession(self._connect, self.path)

    def reflection_engine(self) -> sqlalchemy.Engine:
        """Engine over the same file, read-only. No authorizer: it runs only SQLAlchemy's SQL."""
        return sqlalchemy.create_engine(
            "sqlite://", creator=self._connect, poolclass=sqlalchemy.pool.NullPool
        )

    def interrupt(self, connection: sqlite3.Connection) -> None:
        """Stop what runs on a connection of the reflection engine."""
        connection.interrupt()

    def visible_schemas(self, inspector: sqlalchemy.Inspector) -> tuple[str | None, ...]:
        """One: attached databases are not allowed."""
        return (None,)

    def column_comments(self, connection: sqlalchemy.Connection) -> Mapping[tuple[str, str], str]:
        """What stands behind `--` or between `/*` and `*/` in a column's definition.

        SQLite keeps the text of CREATE TABLE, and people keep their descriptions in it.
        """
        statements = connection.execute(
            sqlalchemy.text(
                "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL"
            )
        )
        return {
            (table, column): comment
            for table, sql in statements
            for column, comment in _comments_in(sql)
        }

    def version(self, connection: sqlalchemy.Connection) -> str:
        """SQLite counts the changes of its schema; a file that took the place is another file."""
        count = connection.execute(sqlalchemy.text("PRAGMA schema_version")).scalar_one()
        return f"{self.path.stat().st_ino}:{count}"

    def data_version(self) -> str | None:
        """Of the file and its write-ahead log: whoever commits writes to one of them."""
        log = self.path.with_name(f"{self.path.name}-wal")
        return " ".join(file_state(path) for path in (self.path, log))

    def _connect(self) -> sqlite3.Connection:
        uri = f"file:{quote(str(self.path))}?mode=ro"
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                uri, uri=True, check_same_thread=False, isolation_level=None, cached_statements=0
            )
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise CallerMistake(
                f"The file {self.path} cannot be read as a SQLite database: {error}.",
                remedy="Check that it is a SQLite file that this user may read.",
            ) from error
        return connection


class SQLiteSession:
    """One read-only connection behind the authorizer; another one when another file is there."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._path = path
        self._deadline = float("inf")
        self._stop = threading.Event()
        self._forbidden: str | None = None
        self._longest: int | None = None
        self._file = file_identity(path)
        self._connection = self._guarded(connect())

    def _guarded(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.text_factory = self._text
        _connect_virtual_tables(connection)
        for limit, value in _LIMITS:
            connection.setlimit(limit, value)
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._must_stop, _OPERATIONS_BETWEEN_CLOCK_CHECKS)
        return connection

    def _follow_the_file(self) -> None:
        """Open the file that has taken the place of the one that is open; none means it stays."""
        there = file_identity(self._path)
        if there in ("", self._file):
            return
        try:
            fresh = self._guarded(self._connect())
        except CallerMistake as mistake:
            raise StatementFailed(
                f"SQLite: the file was replaced, and the new one fails: {mistake.problem}",
                cause="connection",
                remedy=mistake.remedy,
            ) from mistake
        replaced, self._connection, self._file = self._connection, fresh, there
        replaced.close()

    def run(self, sql: str, *, limits: Limits) -> Rows:
        """Run one statement; see `Session.run`."""
        self._follow_the_file()
        started = time.monotonic()
        self._deadline = started + limits.timeout_s
        self._stop.clear()
        self._forbidden = None
        # One character more than is shown, by which a text that was cut is told.
        self._longest = _BYTES_A_CHARACTER * (limits.max_value_characters + 1)
        collector = RowCollector(limits)
        try:
            with contextlib.closing(self._connection.cursor()) as cursor:
                cursor.execute(sql)
                collector.columns = tuple(item[0] for item in cursor.description or ())
                for row in cursor:
                    if not collector.add(row) or self._must_stop():
                        break
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._explain(error, limits) from error
        except (OverflowError, ValueError, MemoryError) as error:
            raise StatementFailed(f"SQLite cannot run this statement: {error}") from error
        if self._must_stop():
            raise self._timeout(limits)
        return collector.finish(elapsed_s=time.monotonic() - started)

    def interrupt(self) -> None:
        """Stop the running statement within a few thousand virtual machine steps."""
        self._stop.set()
        # A connection closed meanwhile has nothing left to interrupt.
        with contextlib.suppress(sqlite3.ProgrammingError):
            self._connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _text(self, raw: bytes) -> str:
        return raw[: self._longest].decode("utf-8", "replace")

    def _must_stop(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self._deadline

    def _authorize(
        self,
        action: int,
        first: str | None,
        second: str | None,
        database: str | None,
        trigger: str | None,
    ) -> int:
        match action:
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ:
                if first is not None and first.lower().startswith("sqlite_"):
                    return self._deny(f"reading the system table {first}")
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_FUNCTION:
                if second is not None and second.lower() in DENIED_FUNCTIONS:
                    return self._deny(f"the function {second}")
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_PRAGMA if (first, second) == ("data_version", None):
                # Full-text tables ask this of themselves on every read.
                return sqlite3.SQLITE_OK
            case _:
                return self._deny("anything but reading")

    def _deny(self, what: str) -> int:
        self._forbidden = what
        return sqlite3.SQLITE_DENY

    def _explain(self, error: Exception, limits: Limits) -> StatementFailed:
        if self._forbidden is not None:
            return StatementFailed(
                f"SQLite's authorizer does not allow {self._forbidden}.", cause="forbidden"
            )
        if self._must_stop():
            return self._timeout(limits)
        return StatementFailed(f"SQLite: {error}")

    def _timeout(self, limits: Limits) -> StatementFailed:
        return StatementFailed(
            f"The statement was stopped after {limits.timeout_s:g} s.",
            cause="timeout",
            remedy="Join on keys, filter earlier, or raise the limit timeout_s.",
        )


def _comments_in(sql: str) -> Iterator[tuple[str, str]]:
    if "--" not in sql and "/*" not in sql:
        return
    try:
        tree = sqlglot.parse_one(sql, dialect="sqlite")
    except SqlglotError:
        return
    for column in tree.find_all(exp.ColumnDef):
        found = [text.strip() for node in column.walk() for text in node.comments or ()]
        if found:
            yield column.name, "; ".join(found)


def _connect_virtual_tables(connection: sqlite3.Connection) -> None:
    """Let virtual tables declare themselves while no authorizer stands in their way.

    To SQLite a declaration looks like a write to its catalogue, though it changes nothing.
    """
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL %'"
    ).fetchall()
    for (name,) in found:
        # One whose module is missing here cannot be read; the others can.
        with contextlib.suppress(sqlite3.Error):
            quoted = name.replace('"', '""')
            connection.execute(f'SELECT 1 FROM "{quoted}" LIMIT 0').fetchall()
