"""A database that is away, busy or full: which errors say so, and how long is waited for its end.

Every transition may be repeated, so that one which met such an error is: the database may have been
restarted, its disk may have been full, or a backup may have held its lock.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from hexprefect.errors import HexprefectError
from hexprefect.urls import shown_url, without_secrets

PAUSE_S = 0.25
"""Between two tries."""

_PASSING_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)

_BROKEN_SQLITE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_PASSING_POSTGRESQL = ("08", "25006", "25P03", "40", "53", "55", "57", "58")
"""How the states begin: no connection, a standby, stalled, rolled back for another's sake, no room,
locked, an operator's or a time limit's word, and the machine's own trouble."""


class StoreUnavailable(HexprefectError):
    """The store's database is away, busy or full, and was so for as long as anybody would wait."""


def is_passing(error: BaseException) -> bool:
    """Whether the same might succeed later: nothing is wrong with what was asked."""
    if isinstance(error, NoConnectionFree):
        return True
    driver = _of_driver(error)
    if isinstance(driver, sqlite3.Error):
        return _sqlite_code(driver) in _PASSING_SQLITE
    if isinstance(driver, psycopg.Error):
        if driver.sqlstate is None:
            return isinstance(driver, psycopg.OperationalError)
        return driver.sqlstate.startswith(_PASSING_POSTGRESQL)
    return False


@contextmanager
def told_as_unavailable(url: URL) -> Iterator[None]:
    """Say of an error that it is the database's, in words that a person can act on.

    Raises:
        StoreUnavailable: in place of a driver's error that is no fault of what was asked.
    """
    try:
        yield
    except Exception as error:
        driver = _of_driver(error)
        broken = isinstance(driver, sqlite3.Error) and _sqlite_code(driver) in _BROKEN_SQLITE
        if not (broken or is_passing(error)):
            raise
        said = without_secrets(str(driver).strip().splitlines()[0], url)
        raise StoreUnavailable(
            f"The store at {shown_url(url)} cannot be used: {said}.",
            remedy="See that its database runs, has room and is not locked, or name the right one "
            "with --store or HEXPREFECT_STORE.",
        ) from error


def _of_driver(error: BaseException) -> BaseException:
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig
    return error


def _sqlite_code(error: sqlite3.Error) -> int:
    # The lowest byte is the kind; the others say more of it. Python's own errors have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
