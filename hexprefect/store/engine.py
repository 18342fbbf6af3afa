"""One engine for both databases: SQLite (WAL) on one machine, PostgreSQL for many.

Every transaction that may move a request starts by taking the one scheduling lock, so that it reads
the instances' load as it is and not as it was: `BEGIN IMMEDIATE` on SQLite, a transaction-scoped
advisory lock on PostgreSQL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from hexprefect.errors import CallerMistake

SCHEDULING_LOCK = 0x48455847
"""Key of the PostgreSQL advisory lock: the letters HEXG."""

BUSY_TIMEOUT_S = 30.0


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
        return create_engine(parsed, pool_size=4, max_overflow=4, pool_pre_ping=True)
    except NoSuchModuleError as error:
        raise CallerMistake(f"No driver for the store: {error}.") from error


def _sqlite_engine(url: URL) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise CallerMistake(
            "The store cannot be in memory: other processes must see it.",
            remedy="Use sqlite:////absolute/path.sqlite.",
        )
    Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        poolclass=QueuePool,
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


def take_scheduling_lock(connection: Connection) -> None:
    """Wait until no other process decides; released when the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": SCHEDULING_LOCK})
