"""PostgreSQL: read-only transactions, one prepared statement each, stopped on the server.

The walls, outermost first: the role (a superuser is lowered to `pg_read_all_data`), a read-only
transaction, a server-side cursor sent through the extended protocol (`DECLARE … CURSOR FOR` takes
one SELECT or VALUES, so neither a second statement nor a data-changing CTE gets through),
`statement_timeout`, a cancel request from the client, and `DISCARD ALL` before the next use.

The first does not hold a superuser: `set_config('role', 'none', true)` takes the rights back, and
PostgreSQL has no way to give them up for good. Of such an account the adapter warns.
https://www.postgresql.org/docs/current/sql-declare.html
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Generator, Mapping
from typing import Any

import psycopg
import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.dialects.postgresql_values import read_exactly
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import RowCollector, Rows
from hexprefect.urls import shown_url, without_secrets

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 10
_CANCEL_TIMEOUT_S = 2.0
_ROWS_A_FETCH = 200
_CURSOR = "answer"
_READ_EVERYTHING_ROLE = "pg_read_all_data"
_FIRST_VERSION_WITH_READ_ROLE = 140_000
_REACH_PAST_A_TRANSACTION = (
    "pg_read_server_files",
    "pg_write_server_files",
    "pg_execute_server_program",
)
_warned_of: set[str] = set()
"""Databases with the account in their URL, as they may be shown."""


_CLASSES_OF_THE_CONNECTION = ("08", "58")
_STATES_OF_THE_CONNECTION = frozenset(
    {
        "57P01",  # admin_shutdown
        "57P02",  # crash_shutdown
        "57P03",  # cannot_connect_now
        "57P04",  # database_dropped
        "57P05",  # idle_session_timeout
        "25P03",  # idle_in_transaction_session_timeout
        "25P04",  # transaction_timeout
    }
)
"""https://www.postgresql.org/docs/current/errcodes-appendix.html"""


class PostgreSQLAdapter:
    """A PostgreSQL database named by a SQLAlchemy URL, with psycopg whatever driver it names."""

    dialect = "postgres"

    def __init__(self, url: sqlalchemy.URL) -> None:
        self.url = url.set(drivername="postgresql+psycopg")

    def open(self) -> PostgreSQLSession:
        """Connect and lower the session's rights."""
        _, arguments = self.url.get_dialect()().create_connect_args(self.url)
        try:
            connection = psycopg.connect(
                **{
                    "connect_timeout": _CONNECT_TIMEOUT_S,
                    "application_name": "hexprefect",
                    **arguments,
                },
                autocommit=True,
                # DISCARD ALL drops prepared statements that psycopg would go on to use.
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            raise CallerMistake(
                f"The database {shown_url(self.url)} cannot be reached: "
                f"{without_secrets(str(error).strip(), self.url)}.",
                remedy="Check that the server runs and that host, port, user and password are "
                "right.",
            ) from error
        session = PostgreSQLSession(connection)
        self._warn_of(session.powers)
        return session

    def _warn_of(self, powers: tuple[str, ...]) -> None:
        """Say once that the database's own wall does not hold for this account."""
        shown = shown_url(self.url)
        if not powers or shown in _warned_of:
            return
        _warned_of.add(shown)
        logger.warning(
            "The account of %s may act as %s: a statement that got past the guard could read files "
            "and more, as nothing of PostgreSQL holds such an account back. Use a role that can "
            "only read: CREATE ROLE reader LOGIN PASSWORD '…'; "
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader.",
            shown,
            ", ".join(powers[:4]),
        )

    def reflection_engine(self) -> sqlalchemy.Engine:
        """Engine for SQLAlchemy's catalogue queries, in read-only transactions."""
        return sqlalchemy.create_engine(
            self.url,
            poolclass=sqlalchemy.pool.NullPool,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "options": "-c default_transaction_read_only=on -c statement_timeout=60000",
            },
        )

    def interrupt(self, connection: psycopg.Connection[Any]) -> None:
        """Cancel what runs on a connection of the reflection engine."""
        connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)

    def visible_schemas(self, inspector: sqlalchemy.Inspector) -> tuple[str | None, ...]:
        """The default schema first, then every other one that is not the system's."""
        default = inspector.default_schema_name
        others = [
            name
            for name in inspector.get_schema_names()
            if name not in (default, "information_schema") and not name.startswith("pg_")
        ]
        return (None, *sorted(others))

    def column_comments(self, connection: sqlalchemy.Connection) -> Mapping[tuple[str, str], str]:
        """None: SQLAlchemy reflects PostgreSQL's comments."""
        return {}

    def version(self, connection: sqlalchemy.Connection) -> str:
        """A digest of the catalogue's rows by the transactions that wrote them."""
        row = connection.execute(sqlalchemy.text(_VERSION_QUERY)).one()
        return ":".join(str(part) for part in row)

    def data_version(self) -> str | None:
        """Not told: what counts changes here lags behind them."""
        return None


_VERSION_QUERY = """
WITH named AS (
    SELECT oid, xmin FROM pg_class
    WHERE relkind IN ('r', 'v', 'm', 'f', 'p') AND relnamespace NOT IN (
        SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\\_%' OR nspname = 'information_schema')
)
SELECT
    (SELECT md5(string_agg(oid::text || '/' || xmin::text, ',' ORDER BY oid)) FROM named),
    (SELECT md5(string_agg(attrelid::text || '/' || attnum::text || '/' || xmin::text, ','
                           ORDER BY attrelid, attnum))
     FROM pg_attribute WHERE attrelid IN (SELECT oid FROM named) AND attnum > 0),
    (SELECT md5(string_agg(oid::text || '/' || xmin::text, ',' ORDER BY oid))
     FROM pg_constraint WHERE conrelid IN (SELECT oid FROM named)),
    (SELECT md5(string_agg(objoid::text || '/' || objsubid::text || '/' || description, ','
                           ORDER BY objoid, objsubid))
     FROM pg_description WHERE objoid IN (SELECT oid FROM named)),
    (SELECT md5(string_agg(oid::text || '/' || xmin::text, ',' ORDER BY oid)) FROM pg_namespace)
"""


class PostgreSQLSession:
    """One connection whose every statement runs in a read-only transaction of its own."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        read_exactly(connection)
        self.powers = _powers(connection)
        """Superusers and roles over the server's files that the account is or may become."""
        row = connection.execute(
            "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        ).fetchone()
        self._must_be_lowered = bool(row and row[0]) and (
            connection.info.server_version >= _FIRST_VERSION_WITH_READ_ROLE
        )
        self._used = False

    def run(self, sql: str, *, limits: Limits) -> Rows:
        """Run one statement; see `Session.run`."""
        started = time.monotonic()
        collector = RowCollector(limits)
        try:
            self._begin(limits)
            # A named cursor is declared through the extended protocol.
            with self._connection.cursor(name=_CURSOR) as cursor:
                cursor.execute(sql.encode())
                collector.columns = tuple(item.name for item in cursor.description or ())
                _collect(self._connection, collector, deadline=started + limits.timeout_s)
        except psycopg.Error as error:
            raise _explain(error, limits) from error
        except (ValueError, OverflowError, MemoryError) as error:
            raise StatementFailed(f"PostgreSQL's result cannot be read: {error}") from error
        finally:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute("ROLLBACK")
        return collector.finish(elapsed_s=time.monotonic() - started)

    def interrupt(self) -> None:
        """Send a cancel request to the server, bounded in time."""
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _begin(self, limits: Limits) -> None:
        execute = self._connection.execute
        if self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            # A cancel request that came late has hit the last one's end.
            execute("ROLLBACK")
        if self._used:
            execute("DISCARD ALL")
        self._used = True
        execute("BEGIN TRANSACTION READ ONLY")
        timeout_ms = max(1, round(limits.timeout_s * 1000))
        execute(f"SET LOCAL statement_timeout = {timeout_ms}".encode())
        execute("SET LOCAL lock_timeout = '2s'")
        execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
        # The guard reads a backslash in a plain literal as itself; so must the server.
        execute("SET LOCAL standard_conforming_strings = on")
        # A cursor is planned for its first tenth by default; here it is read to the end.
        execute("SET LOCAL cursor_tuple_fraction = 1.0")
        if self._must_be_lowered:
            execute(f"SET LOCAL ROLE {_READ_EVERYTHING_ROLE}".encode())


def _powers(connection: psycopg.Connection[tuple[Any, ...]]) -> tuple[str, ...]:
    found = connection.execute(
        "SELECT rolname FROM pg_roles WHERE (rolsuper OR rolname = ANY(%s)) "
        "AND pg_has_role(current_user, oid, 'MEMBER') ORDER BY rolname <> current_user, rolname",
        (list(_REACH_PAST_A_TRANSACTION),),
    ).fetchall()
    return tuple(str(name) for (name,) in found)


def _collect(
    connection: psycopg.Connection[tuple[Any, ...]], collector: RowCollector, *, deadline: float
) -> None:
    """Read the cursor's rows one by one as they come: nobody knows how large the next one is."""
    with connection.cursor() as reader:
        while count := min(_ROWS_A_FETCH, collector.wanted):
            fetch = f"FETCH FORWARD {count} FROM {_CURSOR}".encode()
            received = 0
            # Left early, it tells the server that the rest is not wanted.
            with contextlib.closing(_rows_of(reader, fetch)) as rows:
                for row in rows:
                    received += 1
                    if not collector.add(row) and received < count:
                        return
                    if time.monotonic() > deadline:
                        raise psycopg.errors.QueryCanceled("the result took too long to read")
            if received < count:
                return


def _rows_of(
    reader: psycopg.Cursor[tuple[Any, ...]], fetch: bytes
) -> Generator[tuple[Any, ...], None, None]:
    yield from reader.stream(fetch)


def _explain(error: psycopg.Error, limits: Limits) -> StatementFailed:
    message = (error.diag.message_primary or str(error)).strip()
    match error:
        case psycopg.errors.QueryCanceled():
            return StatementFailed(
                f"The statement was stopped after {limits.timeout_s:g} s.",
                cause="timeout",
                remedy="Join on keys, filter earlier, or raise the limit timeout_s.",
            )
        case psycopg.errors.ReadOnlySqlTransaction() | psycopg.errors.InsufficientPrivilege():
            return StatementFailed(f"PostgreSQL: {message}", cause="forbidden")
        case _ if _is_of_the_connection(error):
            return StatementFailed(f"PostgreSQL: {message}", cause="connection")
        case _:
            hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
            return StatementFailed(f"PostgreSQL: {message}.{hint}")


def _is_of_the_connection(error: psycopg.Error) -> bool:
    """Whether no other statement would help: the server is gone, going, or ended the session."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_CLASSES_OF_THE_CONNECTION) or state in _STATES_OF_THE_CONNECTION
