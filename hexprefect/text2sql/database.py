"""One database that questions are asked of: opened read-only, reflected once, run in threads.

No statement reaches the database except through the guard, and none that does can write, because
each adapter's sessions cannot. Drivers block, so they run in threads; a timeout or a cancellation
stops the statement in the database itself, not only the wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import anyio
import anyio.to_thread
import sqlalchemy

from hexprefect.errors import CallerMistake
from hexprefect.text2sql.access import Access, check_names
from hexprefect.text2sql.audit import AuditTrail
from hexprefect.text2sql.dialects.adapter import Adapter, Session
from hexprefect.text2sql.dialects.registry import adapter_for
from hexprefect.text2sql.errors import StatementFailed, StatementRefused
from hexprefect.text2sql.guard import CheckedStatement, check
from hexprefect.text2sql.limits import Limits
from hexprefect.text2sql.patience import Patience
from hexprefect.text2sql.rows import Rows
from hexprefect.text2sql.schema import NO_VOCABULARY, Schema, Vocabulary
from hexprefect.text2sql.snapshots import snapshots
from hexprefect.urls import shown_url

_GRACE_S = 5.0
"""How long an interrupted statement may take to let go before its session is given up."""
_SCHEMA_TRUSTED_S = 10.0
"""How long a schema is taken to be true without asking whether the structure changed."""

Result = TypeVar("Result")


class Database:
    """A database, its reflected schema and a few read-only sessions.

    Use `await Database.connect(url)`, then `async with` or `await database.close()`.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        url: str,
        limits: Limits,
        key: str = "",
        tenant: str | None = None,
        access: Sequence[Access] = (),
        vocabulary: Vocabulary = NO_VOCABULARY,
    ) -> None:
        self.adapter = adapter
        self.limits = limits
        self.url = url
        """The URL as it may be shown: without its secrets."""
        self.access = tuple(access)
        self.vocabulary = vocabulary
        self.refusals = AuditTrail(url, tenant)
        """What the guard refused here, the newest last."""
        self._key = key or url
        self._free_session = asyncio.Semaphore(limits.connections)
        # Twice as many, so that an interrupt never waits behind what it is to stop.
        self._threads = anyio.CapacityLimiter(2 * limits.connections)
        self._idle: list[Session] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._schema: Schema | None = None
        self._schema_asked_at = 0.0
        self._schema_lock = asyncio.Lock()

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        limits: Limits | None = None,
        tenant: str | None = None,
        access: Sequence[Access] = (),
        vocabulary: Vocabulary = NO_VOCABULARY,
    ) -> Self:
        """Open the database and prove that it answers.

        Args:
            url: SQLAlchemy URL, for example `sqlite:///shop.sqlite`.
            limits: bounds on every statement.
            tenant: who asks, for the record of what is refused.
            access: what may be read; each can only take away from those before it.
            vocabulary: what the prompt says of the database's words.

        Raises:
            CallerMistake: the URL is wrong or the database cannot be reached; the message names it
                without its password.
        """
        adapter = adapter_for(url)
        parsed = sqlalchemy.make_url(url)
        database = cls(
            adapter,
            url=shown_url(parsed),
            limits=limits or Limits(),
            key=parsed.render_as_string(hide_password=False),
            tenant=tenant,
            access=access,
            vocabulary=vocabulary,
        )
        database._idle.append(await database._open())
        return database

    @property
    def dialect(self) -> str:
        """sqlglot's name of this database's SQL."""
        return self.adapter.dialect

    async def schema(self, *, refresh: bool = False) -> Schema:
        """What may be read here, with sample values; read anew when the structure changed.

        All who ask the same database with the same rights share one object. Whether it is still
        true is asked when this is first called and then every few seconds.

        Args:
            refresh: read the catalogue in any case, for example after it was changed.

        Raises:
            CallerMistake: the catalogue cannot be read, or lacks a name of what may be read.
        """
        async with self._schema_lock:
            now = time.monotonic()
            is_old = now - self._schema_asked_at > _SCHEMA_TRUSTED_S
            if self._schema is None or refresh or is_old:
                self._schema = await self._snapshot(refresh)
                self._schema_asked_at = now
            return self._schema

    async def data_version(self) -> str | None:
        """Changes whenever a row changes; None where the engine does not tell."""
        return await self._in_thread(self.adapter.data_version)

    async def check(self, sql: str) -> CheckedStatement:
        """Put a statement through the guard without running it.

        Raises:
            StatementRefused: it breaks a rule; the refusal is logged and kept in `refusals`.
        """
        schema = await self.schema()
        try:
            # A long statement takes seconds. Not in `_threads`: an interrupt must never wait.
            return await asyncio.to_thread(check, sql, dialect=self.dialect, schema=schema)
        except StatementRefused as refused:
            self.refusals.refuse(sql, refused)
            raise

    async def execute(self, sql: str) -> Rows:
        """Check one statement and run what the guard made of it.

        Raises:
            StatementRefused: the guard refused it.
            StatementFailed: the database did, or the time limit was reached.
        """
        return await self.run_checked(await self.check(sql))

    async def run_checked(self, statement: CheckedStatement) -> Rows:
        """Run a statement that the guard has passed.

        Raises:
            StatementFailed: the database could not run it, or the time limit was reached.
        """
        return await self._run(statement.sql)

    async def close(self) -> None:
        """Close every idle session, and wait for those that are being closed."""
        sessions, self._idle = self._idle, []
        for session in sessions:
            self._close_soon(session)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_GRACE_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, sql: str) -> Rows:
        async with self._free_session:
            session = self._idle.pop() if self._idle else await self._open()
            work = asyncio.ensure_future(
                self._in_thread(lambda: _result(session, sql, self.limits))
            )
            try:
                # The database ends the statement itself; this wait is for one that does not.
                await asyncio.wait({work}, timeout=self.limits.timeout_s + _GRACE_S)
            finally:
                if not work.done():
                    await self._stop(session, work)
                self._put_back(session, work)
            if not work.done():
                raise StatementFailed(
                    f"The database did not stop the statement after {self.limits.timeout_s:g} s.",
                    cause="timeout",
                    remedy="Its session was given up; look at the database's own statement list.",
                )
            return work.result()

    async def _stop(self, session: Session, work: asyncio.Future[Rows]) -> None:
        """Interrupt a statement on its server and wait, not for ever, until it lets go."""
        with anyio.move_on_after(_GRACE_S, shield=True):
            await self._in_thread(session.interrupt)
            await asyncio.wait({work})

    def _put_back(self, session: Session, work: asyncio.Future[Rows]) -> None:
        if not work.done():
            work.add_done_callback(lambda done: self._discard(session, done))
            return
        failure = work.exception()
        if failure is None or (
            isinstance(failure, StatementFailed) and failure.cause != "connection"
        ):
            self._idle.append(session)
        else:
            self._close_soon(session)

    def _discard(self, session: Session, work: asyncio.Future[Rows]) -> None:
        self._close_soon(session)
        _forget(work)

    def _close_soon(self, session: Session) -> None:
        """Close a session in a thread: it may have to tell a server that does not answer."""
        closing = asyncio.ensure_future(self._in_thread(session.close))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        closing.add_done_callback(_forget)

    async def _open(self) -> Session:
        opening = asyncio.ensure_future(self._in_thread(self.adapter.open))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._close_opened)
            raise

    def _close_opened(self, opening: asyncio.Future[Session]) -> None:
        """Close a session that nobody waits for any more."""
        if not opening.cancelled() and opening.exception() is None:
            self._close_soon(opening.result())

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def _snapshot(self, refresh: bool) -> Schema:
        patience = Patience()

        def form() -> Schema:
            snapshot = snapshots.current(
                self._key, self.adapter, refresh=refresh, patience=patience
            )
            check_names(snapshot.schema, self.access)
            return snapshot.form(self.access, self.vocabulary)

        reading = asyncio.ensure_future(self._in_thread(form))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            patience.stop.set()
            with anyio.move_on_after(_GRACE_S, shield=True):
                await asyncio.wait({reading})
            reading.add_done_callback(_forget)
            raise
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise CallerMistake(
                f"The catalogue of {self.url} cannot be read: {type(error).__name__}.",
                remedy="Check that the user may read the catalogue and that the file is whole.",
            ) from error


def _result(session: Session, sql: str, limits: Limits) -> Rows:
    try:
        return session.run(sql, limits=limits)
    except RecursionError as error:
        raise StatementFailed(
            "A value of the result is nested too deeply to be read.",
            remedy="Select what is needed of it.",
        ) from error


def _forget(work: asyncio.Future[Result]) -> None:
    """Look at the outcome that nobody waits for any more; asyncio would warn otherwise."""
    if not work.cancelled():
        work.exception()
