"""One engine for both databases: SQLite (WAL) on one machine, PostgreSQL for many.

Every transaction that may move a request starts by taking the one scheduling lock, so that it reads
the instances' load as it is and not as it was: `BEGIN IMMEDIATE` on SQLite, a transaction-scoped
advisory lock on PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Select, create_engine, event
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import URL, Dialect, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from hexprefect.errors import CallerMistake
from hexprefect.store.words import storable_json

SCHEDULING_LOCK = 0x48455847
"""Key of the PostgreSQL advisory lock: the letters HEXG."""

BUSY_TIMEOUT_S = 30.0

STALLED_MS = 15_000
"""A process that stops amid a transaction would hold the lock for ever: PostgreSQL ends its session
after so long without a statement, and its work is rolled back."""

_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
"""libpq's own, unless the URL says otherwise: a server whose machine or network is gone answers
nothing at all, and would be waited for for hours. All in seconds, but the last in milliseconds."""

_PSYCOPG: Dialect = postgresql.psycopg.dialect()  # type: ignore[no-untyped-call]

_LOCK_AND_LOOK = (
    # The clock is read once the lock is held: all processes see one order of events (law 4).
    f"WITH locked AS MATERIALIZED (SELECT pg_advisory_xact_lock({SCHEDULING_LOCK})) "
    "SELECT extract(epoch FROM clock_timestamp())::float8 FROM locked"
)


def store_url(url: str) -> URL:
    """Parse and complete a store URL.

    Raises:
        CallerMistake: when it is not a URL of SQLite or PostgreSQL.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise CallerMistake(
            "The store URL cannot be read.",
            remedy="Use sqlite:////absolute/path.sqlite or postgresql://user@host/name.",
        ) from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return parsed.set(drivername="sqlite")
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    raise CallerMistake(
        f"The store cannot live in {backend!r}.", remedy="Use an SQLite or a PostgreSQL URL."
    )


def open_engine(url: str) -> Engine:
    """An engine for the store; creates the folder of a new SQLite file."""
    parsed = store_url(url)
    try:
        if parsed.get_backend_name() == "sqlite":
            return _sqlite_engine(parsed)
        return _postgresql_engine(parsed)
    except NoSuchModuleError as error:
        raise CallerMistake(f"No driver for the store: {error}.") from error


def _sqlite_engine(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise CallerMistake(
            "The store cannot be in memory: other processes must see it.",
            remedy="Use sqlite:////absolute/path.sqlite.",
        )
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerMistake(
            f"The store's folder {folder} cannot be made: {error.strerror}.",
            remedy="Give another store, or another HEXPREFECT_STATE.",
        ) from error
    engine = create_engine(
        url,
        poolclass=QueuePool,
        json_serializer=storable_json,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # The driver's own transaction control would begin too late and without IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = NORMAL")
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        deferred = connection.get_execution_options().get("hexprefect_read_only", False)
        connection.exec_driver_sql("BEGIN" if deferred else "BEGIN IMMEDIATE")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    engine = create_engine(
        url,
        pool_size=4,
        max_overflow=4,
        # Each statement must see what was committed before it had the lock, whatever the server's
        # default is.
        isolation_level="READ COMMITTED",
        connect_args={key: value for key, value in _NETWORK.items() if key not in url.query},
        json_serializer=storable_json,
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {STALLED_MS}")
        connection.commit()

    return engine


Read = tuple[Select[Any], dict[str, Any]]
"""A statement and its parameters."""


def begin_scheduling(
    connection: Connection, reads: Sequence[Read]
) -> tuple[float, list[list[dict[str, Any]]]]:
    """Wait until no other process decides, then read; the lock is held until the commit.

    On PostgreSQL the lock, the clock and what is read take one round trip together; each statement
    still has its own snapshot, taken when the lock is held.

    Returns:
        The time (epoch seconds) by the clock that all processes share, and the rows of each
        statement.
    """
    if connection.dialect.name != "postgresql":
        return time.time(), read_together(connection, reads)
    driver: Any = connection.connection.driver_connection
    with driver.pipeline():
        locked = driver.execute(_LOCK_AND_LOOK)
        results = read_together(connection, reads)
        return float(locked.fetchone()[0]), results


def read_together(
    connection: Connection,
    reads: Sequence[Read],
    *,
    after: Callable[[], None] = lambda: None,
) -> list[list[dict[str, Any]]]:
    """The rows of each statement; in one round trip on PostgreSQL.

    Args:
        after: writes what the statements must see, with statements whose results nobody reads.
    """
    if connection.dialect.name != "postgresql":
        after()
        return [
            [row._asdict() for row in connection.execute(statement, parameters)]
            for statement, parameters in reads
        ]
    driver: Any = connection.connection.driver_connection
    with driver.pipeline():
        after()
        cursors = []
        for statement, parameters in reads:
            text, fixed = _compiled(statement)
            cursors.append(driver.execute(text, {**fixed, **parameters}, prepare=True))
        return [
            [dict(zip(statement.selected_columns.keys(), row, strict=True)) for row in cursor]
            for (statement, _), cursor in zip(reads, cursors, strict=True)
        ]


def was_lost(connection: Connection, error: BaseException) -> bool:
    """Whether `error` means that the connection to the server is gone."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if connection.dialect.name != "postgresql" or connection.invalidated:
        return False
    driver: Any = connection.connection.driver_connection
    return bool(driver.closed)


@contextmanager
def written_together(connection: Connection) -> Iterator[None]:
    """Send statements whose results nobody reads, in one round trip on PostgreSQL.

    An error of any of them is raised at the end of the block at the latest.
    """
    if connection.dialect.name != "postgresql":
        yield
        return
    driver: Any = connection.connection.driver_connection
    with driver.pipeline():
        yield


@lru_cache(maxsize=16)
def _compiled(statement: Select[Any]) -> tuple[str, dict[str, Any]]:
    compiled = statement.compile(dialect=_PSYCOPG)
    return str(compiled), compiled.params
