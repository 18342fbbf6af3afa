"""Hearing, within milliseconds, that another process has admitted a request of ours.

SQLite: one thread polls `PRAGMA data_version`, which costs microseconds, and looks only when
another process has committed. PostgreSQL: `LISTEN`, with a slow poll for a lost notification.
"""

from __future__ import annotations

import abc
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Protocol

import psycopg

from hexprefect.store import Store


class Watch(Protocol):
    """A thread that calls `on_admitted` while somebody waits."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wanted(self, waiting: bool) -> None:
        """Whether any request of this process waits: otherwise there is nothing to hear."""


class _Thread(abc.ABC):
    def __init__(self, on_admitted: Callable[[], None]) -> None:
        self._on_admitted = on_admitted
        self._stopped = threading.Event()
        self._waiting = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hexprefect-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._waiting.set()
        self._thread.join(timeout=5.0)

    def wanted(self, waiting: bool) -> None:
        if waiting:
            self._waiting.set()
        else:
            self._waiting.clear()

    @abc.abstractmethod
    def _run(self) -> None: ...


class SqliteWatch(_Thread):
    """Polls one file."""

    def __init__(
        self, path: str, process: str, on_admitted: Callable[[], None], *, every_s: float
    ) -> None:
        super().__init__(on_admitted)
        self._path = path
        self._process = process
        self._every_s = every_s

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with contextlib.closing(
                    sqlite3.connect(self._path, timeout=5.0, isolation_level=None)
                ) as connection:
                    self._poll(connection)
            except sqlite3.Error:
                # The store's own transitions meet the same trouble and report it.
                self._stopped.wait(0.5)

    def _poll(self, connection: sqlite3.Connection) -> None:
        seen = -1
        while not self._stopped.is_set():
            self._waiting.wait()
            version = connection.execute("PRAGMA data_version").fetchone()[0]
            if version != seen:
                seen = version
                if self._admitted(connection):
                    self._on_admitted()
            time.sleep(self._every_s)

    def _admitted(self, connection: sqlite3.Connection) -> bool:
        found = connection.execute(
            "SELECT 1 FROM requests WHERE owner = ? AND state = 'admitted' LIMIT 1",
            (self._process,),
        ).fetchone()
        return found is not None


class PostgresWatch(_Thread):
    """Listens on one connection of its own; reconnects for as long as it is wanted."""

    def __init__(
        self, conninfo: str, process: str, on_admitted: Callable[[], None], *, every_s: float = 0.5
    ) -> None:
        super().__init__(on_admitted)
        self._conninfo = conninfo
        self._process = process
        self._every_s = every_s

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as connection:
                    connection.execute("LISTEN hexprefect")
                    self._listen(connection)
            except psycopg.Error:
                # The store's own transitions meet the same outage and report it.
                self._stopped.wait(self._every_s)

    def _listen(self, connection: psycopg.Connection) -> None:
        while not self._stopped.is_set():
            heard = [
                notify.payload
                for notify in connection.notifies(timeout=self._every_s, stop_after=1)
            ]
            if self._waiting.is_set() and (not heard or self._process in heard):
                self._on_admitted()


def watch_for(store: Store, on_admitted: Callable[[], None], *, every_s: float) -> Watch:
    """The watch for a store's kind of database."""
    url = store.engine.url
    if url.get_backend_name() == "sqlite":
        return SqliteWatch(str(url.database), store.process, on_admitted, every_s=every_s)
    conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return PostgresWatch(conninfo, store.process, on_admitted)
