"""MySQL and MariaDB: read-only transactions of an account that may do nothing to the server.

The walls, outermost first: the account (one that may read files or run the server is refused), a
read-only transaction, a protocol that takes one statement (the client never offers
CLIENT_MULTI_STATEMENTS), `max_statement_time` or `MAX_EXECUTION_TIME`, KILL QUERY from a second
connection, and COM_RESET_CONNECTION before the next use.
https://mariadb.com/kb/en/start-transaction/#access-mode,
https://dev.mysql.com/doc/refman/8.4/en/server-system-variables.html#sysvar_max_execution_time
"""

from __future__ import annotations

import contextlib
import datetime
import re
import time
from collections.abc import Mapping
from typing import Any

import pymysql
import sqlalchemy
from pymysql.constants import CLIENT, CR, ER, FIELD_TYPE
from pymysql.cursors import SSCursor

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.encoding import json_value
from hexprefect.text2sql.errors import StatementFailed
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.rows import RowCollector, Rows
from hexprefect.urls import shown_url, without_secrets

_CONNECT_TIMEOUT_S = 10
_SYSTEM_SCHEMAS = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
_COM_RESET_CONNECTION = 0x1F

HARMLESS_PRIVILEGES = frozenset(
    {
        "USAGE", "SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "INDEX", "ALTER",
        "REFERENCES", "CREATE TEMPORARY TABLES", "CREATE VIEW", "SHOW VIEW", "EXECUTE",
        "SHOW DATABASES", "DELETE HISTORY", "SHOW CREATE ROUTINE",
    }
)  # fmt: skip
"""Global privileges that a read-only transaction takes the harm from; any other reaches past it."""

_GLOBAL_GRANT = re.compile(r"GRANT (.+?) ON \*\.\* TO ", re.IGNORECASE)

_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
"""Without ANSI_QUOTES, PIPES_AS_CONCAT and NO_BACKSLASH_ESCAPES: the guard reads a text as the
server does only in one mode."""


class MySQLAdapter:
    """A MySQL or MariaDB database named by a SQLAlchemy URL, with PyMySQL whatever it names."""

    dialect = "mysql"

    def __init__(self, url: sqlalchemy.URL) -> None:
        if not url.database:
            raise CallerMistake(
                f"The URL {shown_url(url)} names no database.",
                remedy="Write it as mysql://user:password@host:3306/database.",
            )
        self.url = url.set(drivername="mysql+pymysql")

    def open(self) -> MySQLSession:
        """Connect, and refuse an account that could do more than the transaction holds back."""
        session = MySQLSession(self)
        try:
            session.refuse_dangerous_account()
        except BaseException:
            session.close()
            raise
        return session

    def connect(self) -> pymysql.Connection[Any]:
        """A new connection, outside any transaction.

        Raises:
            CallerMistake: the server does not answer or does not know the account.
        """
        _, arguments = self.url.get_dialect()().create_connect_args(self.url)
        if arguments.get("unix_socket"):
            # Nothing to encrypt, and loading the certificates would cost more than the rest.
            arguments["ssl_disabled"] = True
        try:
            connection: pymysql.Connection[Any] = pymysql.connect(
                **{
                    "connect_timeout": _CONNECT_TIMEOUT_S,
                    "charset": "utf8mb4",
                    **arguments,
                    "autocommit": True,
                    "local_infile": False,
                    "program_name": "hexprefect",
                    "cursorclass": SSCursor,
                    "client_flag": 0,
                }
            )
        except pymysql.Error as error:
            raise CallerMistake(
                f"The database {shown_url(self.url)} cannot be reached: "
                f"{without_secrets(_message(error), self.url)}.",
                remedy="Check that the server runs and that host, port, user and password are "
                "right.",
            ) from error
        assert not connection.client_flag & CLIENT.MULTI_STATEMENTS
        return connection

    def reflection_engine(self) -> sqlalchemy.Engine:
        """Engine for SQLAlchemy's catalogue queries, in read-only transactions."""
        return sqlalchemy.create_engine(
            self.url,
            poolclass=sqlalchemy.pool.NullPool,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "charset": "utf8mb4",
                "local_infile": False,
                "init_command": "SET SESSION TRANSACTION READ ONLY",
            },
        )

    def interrupt(self, connection: Any) -> None:
        """Kill what runs on a connection, from a second one."""
        with self.connect() as other, contextlib.closing(other.cursor()) as cursor:
            cursor.execute(f"KILL QUERY {connection.thread_id()}")

    def visible_schemas(self, inspector: sqlalchemy.Inspector) -> tuple[str | None, ...]:
        """The URL's database first, then every other that the account sees and is not a system's.

        What MySQL calls a database is a schema here.
        """
        default = inspector.default_schema_name
        others = [
            name
            for name in inspector.get_schema_names()
            if name != default and name.lower() not in _SYSTEM_SCHEMAS
        ]
        return (None, *sorted(others))

    def column_comments(self, connection: sqlalchemy.Connection) -> Mapping[tuple[str, str], str]:
        """None: SQLAlchemy reflects MySQL's comments."""
        return {}

    def version(self, connection: sqlalchemy.Connection) -> str:
        """A digest of the columns, keys, comments and views that the account sees."""
        row = connection.execute(sqlalchemy.text(_VERSION_QUERY)).one()
        return ":".join(str(part) for part in row)

    def data_version(self) -> str | None:
        """Not told: what counts changes here lags behind them."""
        return None


_VERSION_QUERY = """
SELECT
  (SELECT CONCAT(COUNT(*), '/', COALESCE(SUM(CRC32(CONCAT_WS('|', table_schema, table_name,
     column_name, ordinal_position, column_type, is_nullable, column_key, column_comment))), 0))
   FROM information_schema.columns
   WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')),
  (SELECT CONCAT(COUNT(*), '/', COALESCE(SUM(CRC32(CONCAT_WS('|', table_schema, table_name,
     constraint_name, column_name, referenced_table_schema, referenced_table_name,
     referenced_column_name))), 0))
   FROM information_schema.key_column_usage
   WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')),
  (SELECT CONCAT(COUNT(*), '/', COALESCE(SUM(CRC32(CONCAT_WS('|', table_schema, table_name,
     table_type, table_comment))), 0))
   FROM information_schema.tables
   WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')),
  (SELECT CONCAT(COUNT(*), '/', COALESCE(SUM(CRC32(CONCAT_WS('|', table_schema, table_name,
     view_definition))), 0))
   FROM information_schema.views
   WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys'))
"""


class MySQLSession:
    """One connection whose every statement runs in a read-only transaction of its own."""

    def __init__(self, adapter: MySQLAdapter) -> None:
        self._adapter = adapter
        connected: Any = adapter.connect()
        self._connection: pymysql.Connection[Any] | None = connected
        self._used = False
        self._is_mariadb = "mariadb" in connected.get_server_info().lower()

    def refuse_dangerous_account(self) -> None:
        """Refuse an account with a privilege that no read-only transaction holds back.

        Raises:
            CallerMistake: names the privileges and what to do instead.
        """
        [(user,)] = self._read("SELECT CURRENT_USER()")
        name, _, host = str(user).rpartition("@")
        granted = self._granted_by_roles() | {
            str(privilege).upper()
            for grantee, privilege in self._read(
                "SELECT grantee, privilege_type FROM information_schema.user_privileges"
            )
            if str(grantee) == f"'{name}'@'{host}'"
        }
        if dangerous := sorted(granted - HARMLESS_PRIVILEGES):
            shown = ", ".join(dangerous[:6]) + (", …" if len(dangerous) > 6 else "")
            raise CallerMistake(
                f"The account {name} of {shown_url(self._adapter.url)} "
                f"holds privileges that reach past a read-only transaction: {shown}.",
                remedy="Use an account with GRANT SELECT on the databases that may be asked.",
            )

    def _granted_by_roles(self) -> set[str]:
        """Global privileges with those of the roles that are active, and of the roles in these.

        information_schema shows an account none of its roles' privileges.
        """
        using = ""
        if not self._is_mariadb:
            # MariaDB's SHOW GRANTS looks into the active role, MySQL's into those that it is given.
            try:
                [(roles,)] = self._read("SELECT CURRENT_ROLE()")
            except pymysql.Error:
                roles = "NONE"  # Before MySQL 8 there are no roles.
            using = "" if roles == "NONE" else f" FOR CURRENT_USER() USING {roles}"
        found = [_GLOBAL_GRANT.match(str(line)) for (line,) in self._read(f"SHOW GRANTS{using}")]
        return {name.strip().upper() for item in found if item for name in item[1].split(",")}

    def run(self, sql: str, *, limits: Limits) -> Rows:
        """Run one statement; see `Session.run`."""
        started = time.monotonic()
        collector = RowCollector(limits)
        try:
            connection = self._begin(limits)
            cursor: Any
            with contextlib.closing(connection.cursor()) as cursor:
                try:
                    _collect(cursor, sql, collector, started + limits.timeout_s)
                finally:
                    if cursor._result is not None and cursor._result.unbuffered_active:
                        self._abandon(cursor)
        except pymysql.Error as error:
            raise _explain(error, limits) from error
        except (ValueError, OverflowError, UnicodeError) as error:
            raise StatementFailed(f"MySQL's result cannot be read: {error}") from error
        return collector.finish(elapsed_s=time.monotonic() - started)

    def interrupt(self) -> None:
        """Kill the running statement from a second connection."""
        running: Any = self._connection
        if running is None:
            return
        with contextlib.suppress(CallerMistake, pymysql.Error):
            self._adapter.interrupt(running)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error):
                connection.close()

    def _begin(self, limits: Limits) -> pymysql.Connection[Any]:
        if self._connection is None:
            self._connection = self._adapter.connect()
        elif self._used:
            self._reset(self._connection)
        self._used = True
        seconds = max(0.001, limits.timeout_s)
        timeout = (
            f"max_statement_time = {seconds:.3f}"
            if self._is_mariadb
            else f"max_execution_time = {round(seconds * 1000)}"
        )
        for statement in (
            f"SET SESSION sql_mode = '{_MODE}', time_zone = '+00:00', {timeout}, "
            "lock_wait_timeout = 2, innodb_lock_wait_timeout = 2",
            "SET SESSION TRANSACTION READ ONLY",
            "START TRANSACTION READ ONLY",
        ):
            self._read(statement)
        return self._connection

    def _reset(self, connection: Any) -> None:
        """Drop what a statement may have left: variables, locks, temporary tables, settings."""
        # PyMySQL has no public call for it.
        connection._execute_command(_COM_RESET_CONNECTION, b"")
        connection._read_ok_packet()
        connection.set_character_set("utf8mb4")

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        assert self._connection is not None, "the session is open"
        with contextlib.closing(self._connection.cursor()) as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def _abandon(self, cursor: Any) -> None:
        """Stop the statement on the server and leave its connection; the next run opens another.

        PyMySQL reads an unread result to its end before it closes anything, unless it is told that
        there is nothing left.
        """
        self.interrupt()
        connection: Any
        connection, self._connection = self._connection, None
        if cursor._result is not None:
            cursor._result.unbuffered_active = False
            cursor._result = None
        if connection is not None:
            connection._result = None
            connection._force_close()


def _collect(cursor: SSCursor, sql: str, collector: RowCollector, deadline: float) -> None:
    cursor.execute(sql)
    description = cursor.description or ()
    collector.columns = tuple(item[0] for item in description)
    kinds: list[Any] = [item[1] for item in description]
    # Row by row: nobody knows how large the next one is.
    while (row := cursor.fetchone()) is not None:
        if not collector.add(_typed(row, kinds)):
            return
        if time.monotonic() > deadline:
            raise pymysql.err.OperationalError(
                ER.QUERY_INTERRUPTED, "the result took too long to read"
            )


def _typed(row: tuple[Any, ...], kinds: list[Any]) -> tuple[Any, ...]:
    """A TIMESTAMP is a moment (the session counts in UTC); JSON is a value, not its text."""
    return tuple(
        value.replace(tzinfo=datetime.UTC)
        if kind == FIELD_TYPE.TIMESTAMP and isinstance(value, datetime.datetime)
        else json_value(value)
        if kind == FIELD_TYPE.JSON and isinstance(value, str)
        else value
        for value, kind in zip(row, kinds, strict=True)
    )


_TIMEOUTS = frozenset({ER.QUERY_INTERRUPTED, 1969, 3024})
"""Interrupted by KILL; MariaDB's max_statement_time; MySQL's max_execution_time."""
_WALLS = frozenset(
    {
        1792,  # ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
        ER.DBACCESS_DENIED_ERROR,
        ER.ACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
        1370,  # ER_PROCACCESS_DENIED_ERROR
        ER.OPTION_PREVENTS_STATEMENT,
    }
)
_LOST = frozenset(
    {
        CR.CR_SERVER_GONE_ERROR,
        CR.CR_SERVER_LOST,
        0,
        2014,  # Commands out of sync.
        ER.SERVER_SHUTDOWN,
        ER.FORCING_CLOSE,
        ER.NEW_ABORTING_CONNECTION,
        1927,  # ER_CONNECTION_KILLED
        4031,  # ER_CLIENT_INTERACTION_TIMEOUT
    }
)


def _explain(error: pymysql.Error, limits: Limits) -> StatementFailed:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if code in _TIMEOUTS:
        return StatementFailed(
            f"The statement was stopped after {limits.timeout_s:g} s.",
            cause="timeout",
            remedy="Join on keys, filter earlier, or raise the limit timeout_s.",
        )
    message = f"MySQL: {_message(error)}"
    if code in _WALLS:
        return StatementFailed(message, cause="forbidden")
    if code in _LOST:
        return StatementFailed(message, cause="connection")
    return StatementFailed(message)


def _message(error: pymysql.Error) -> str:
    return str(error.args[-1] if error.args else error).strip().rstrip(".")
