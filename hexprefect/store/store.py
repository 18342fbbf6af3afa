"""The store as a process uses it: transitions go in, are committed together, results come out."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, select, text

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.prediction import StageHistory
from hexprefect.scheduling.remaining import RemainingHistory
from hexprefect.store import statements, tables
from hexprefect.store.engine import Read, begin_scheduling, open_engine, was_lost, written_together
from hexprefect.store.outages import PAUSE_S, StoreUnavailable, is_passing, told_as_unavailable
from hexprefect.store.settlement import settle
from hexprefect.store.transaction import Found, Transaction
from hexprefect.store.transitions import submit, submitted
from hexprefect.store.values import DispatchSettings, Grant, NewRequest, Submitted
from hexprefect.store.words import check_name

logger = logging.getLogger(__name__)

T = TypeVar("T")
Operation = Callable[[Transaction], T]

MOST_TOGETHER = 64
"""Transitions in one commit: bounds how long others wait for the scheduling lock."""

HISTORY_AGE_S = 2.0
"""Stage histories are predictions: a process reads the others' news this often."""


@dataclass(slots=True)
class _Job:
    operation: Operation[Any]
    after: Callable[[Transaction], Any] | None = None
    request: str | None = None
    """The request that it is about, and the query that this belongs to, if any is known."""
    query: str | None = None
    future: Future[Any] = field(default_factory=Future)

    def finally_of(self, tx: Transaction, value: Any, error: Exception | None) -> Any:
        """The result, where it is only known once the transaction has settled."""
        if self.after is None or value is not None or error is not None:
            return value
        return self.after(tx)


class Store:
    """One process's door to the store.

    Transitions run one after another in the order in which they were handed in, in a thread of
    their own; those that wait meanwhile share the next commit. Each is atomic: it is wholly in the
    commit, or raises and has changed nothing.

    Args:
        url: of an SQLite file or a PostgreSQL database; see `hexprefect store upgrade`.
        process: id under which this process holds leases; a new one by default.
        on_granted: called, in the store's thread, with requests of this process that may run now.
        patience_s: how long a transition or a look is tried again while the database is away, busy
            or full, in seconds; a connection that had died while it was idle is always replaced.
    """

    def __init__(
        self,
        url: str,
        *,
        process: str | None = None,
        on_granted: Callable[[Sequence[Grant]], None] | None = None,
        patience_s: float = 0.0,
    ) -> None:
        self.url = url
        self.process = process or uuid.uuid4().hex
        self.engine: Engine = open_engine(url)
        self.on_granted = on_granted
        self.patience_s = patience_s
        self._reading: dict[str, Any] = {"hexprefect_read_only": True}
        if self.engine.dialect.name == "postgresql":
            self._reading = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        # Not read here: whoever opens a store on a loop must not wait there for the database.
        self._clock_offset_s: float | None = None if self._reads_clock else 0.0
        self._history: dict[tuple[str, str], StageHistory] = {}
        self._history_read_at = -1e9
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._closing = threading.Event()
        self._starting = threading.Lock()

    # -- time -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, on which all processes agree.

        Raises:
            StoreUnavailable: when the clock was never read before, and the database is away.
        """
        if self._clock_offset_s is None:
            self.read_clock()
        return time.time() + (self._clock_offset_s or 0.0)

    @property
    def _reads_clock(self) -> bool:
        return self.engine.dialect.name == "postgresql"

    def read_clock(self) -> None:
        """Compare this machine's clock with that of the database server.

        Raises:
            StoreUnavailable: when the database is away.
        """
        if not self._reads_clock:
            return

        def compare(connection: Connection) -> float:
            before = time.time()
            theirs = connection.execute(
                text("SELECT extract(epoch FROM clock_timestamp())")
            ).scalar_one()
            return float(theirs) - (before + time.time()) / 2

        self._clock_offset_s = self.read(compare)

    # -- writing --------------------------------------------------------------------------------

    async def run(self, operation: Operation[T], *, about: str | None = None) -> T:
        """Run one transition; returns when it is committed.

        Args:
            about: id of the request that it is about: what it needs of it is then read together
                with taking the lock.

        Raises:
            StoreUnavailable: when the database was away for longer than this store's patience.
        """
        return cast(T, await asyncio.wrap_future(self.enqueue(operation, about=about)))

    async def submit(self, request: NewRequest) -> Submitted:
        """The transition `submit`, with what became of it."""
        return await asyncio.wrap_future(self.enqueue_submit(request))

    def enqueue(self, operation: Operation[T], *, about: str | None = None) -> Future[T]:
        """Hand in a transition from any thread; see `run`."""
        return self._enqueue(_Job(operation, request=about))

    def enqueue_submit(self, request: NewRequest) -> Future[Submitted]:
        """Hand in a submission from any thread.

        Raises:
            CallerMistake: no column holds the id of the request or of its query.
        """
        check_name("request id", request.id, most=64)
        check_name("query id", request.query_id, most=64)
        return self._enqueue(
            _Job(
                lambda tx: submit(tx, request),
                lambda tx: submitted(tx, request),
                request=request.id,
                query=request.query_id,
            )
        )

    def transact(self, operation: Operation[T]) -> T:
        """Run one transition in the calling thread: for command lines and tests."""
        job = _Job(operation)
        self._commit([job])
        return cast(T, job.future.result())

    # -- reading --------------------------------------------------------------------------------

    def read(self, look: Callable[[Connection], T]) -> T:
        """Look at the store without taking the scheduling lock; one snapshot for all of it.

        Args:
            look: may be called again, when the connection dies under it.

        Raises:
            StoreUnavailable: when the database was away for longer than this store's patience.
        """

        def once() -> T:
            with self.engine.connect() as connection, _told_when_lost(connection):
                return look(connection.execution_options(**self._reading))

        with told_as_unavailable(self.engine.url):
            return self._patiently(once)

    async def read_async(self, look: Callable[[Connection], T]) -> T:
        """`read`, in a thread."""
        return await asyncio.to_thread(self.read, look)

    # -- its end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what was handed in, then close every connection.

        A database that is away now is not waited for.
        """
        self._closing.set()
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
        self.engine.dispose()

    # -- the thread -----------------------------------------------------------------------------

    def _enqueue(self, job: _Job) -> Future[Any]:
        with self._starting:
            if self._closed:
                raise RuntimeError("the store is closed")
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="hexprefect-store", daemon=True
                )
                self._thread.start()
            self._jobs.put(job)
        return job.future

    def _work(self) -> None:
        while (first := self._jobs.get()) is not None:
            jobs = [first]
            last = False
            while len(jobs) < MOST_TOGETHER:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    last = True
                    break
                jobs.append(job)
            self._commit(jobs)
            if last:
                return

    def _commit(self, jobs: list[_Job]) -> None:
        try:
            with told_as_unavailable(self.engine.url):
                granted, outcomes = self._patiently(lambda: self._once(jobs))
        except StoreUnavailable as error:
            # For all of them alike: each would only wait for as long again.
            granted, outcomes = [], [(job, None, error) for job in jobs]
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._commit([job])
                return
            granted, outcomes = [], [(jobs[0], None, error)]
        if granted and self.on_granted is not None:
            try:
                self.on_granted(granted)
            except Exception:
                # Whoever waits for these grants finds them in the store, too.
                logger.exception("%d grants could not be handed on.", len(granted))
        for job, value, failure in outcomes:
            _resolve(job.future, value, failure)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        """Try until it succeeds, or fails for another reason, or for longer than our patience.

        Every transition may be repeated: also if a lost connection did commit it.
        """
        began, replaced = time.monotonic(), False
        while True:
            try:
                return attempt()
            except Exception as failure:
                # What a failed attempt has counted into it did not come to pass.
                self._history_read_at = -1e9
                lost = failure if isinstance(failure, _ConnectionLost) else None
                if lost is not None:
                    self.engine.dispose()
                    if not replaced:
                        replaced = True
                        continue
                passing = is_passing(lost.error if lost is not None else failure)
                in_time = time.monotonic() - began < self.patience_s
                if passing and in_time and not self._closing.wait(PAUSE_S):
                    continue
                if lost is not None:
                    raise lost.error from lost.error.__cause__
                raise

    def _once(self, jobs: list[_Job]) -> tuple[list[Grant], list[_Outcome]]:
        with self.engine.connect() as connection, _told_when_lost(connection):
            transaction = connection.begin()
            try:
                now, found = self._look(connection, jobs)
                tx = Transaction(
                    connection,
                    now=now,
                    process=self.process,
                    history=self._known_history(connection),
                    remaining=self._remaining,
                    found=found,
                )
                outcomes = _run(jobs, tx)
                with written_together(connection):
                    tx.flush()
                    transaction.commit()
            except BaseException as error:
                if not was_lost(connection, error):
                    transaction.rollback()
                raise
        return tx.granted, outcomes

    def _look(self, connection: Connection, jobs: Sequence[_Job]) -> tuple[float, Found]:
        postgresql = connection.dialect.name == "postgresql"
        queries = sorted({job.query for job in jobs if job.query is not None})
        requests = sorted({job.request for job in jobs if job.request is not None})
        reads: list[Read] = [(statements.SETTINGS, {}), (statements.INSTANCES, {})]
        for statement, ids in ((statements.QUERIES, queries), (statements.REQUESTS, requests)):
            if ids:
                reads.append((statement[postgresql], {"ids": ids}))
        now, (settings, instances, *named) = begin_scheduling(connection, reads)
        found_queries = named.pop(0) if queries else []
        found_requests = named.pop(0) if requests else []
        return now, Found(
            settings=DispatchSettings(**settings[0]) if settings else DispatchSettings(),
            instances=instances,
            queries={row["id"]: row for row in found_queries},
            requests={**dict.fromkeys(requests), **{row["id"]: row for row in found_requests}},
        )

    def _known_history(self, connection: Connection) -> dict[tuple[str, str], StageHistory]:
        if time.monotonic() - self._history_read_at > HISTORY_AGE_S:
            rows = connection.execute(select(tables.stage_history))
            self._history = {
                (stage, database): StageHistory(count, read, written)
                for stage, database, count, read, written in rows
            }
            visits = connection.execute(select(tables.remaining_history))
            self._remaining = {
                (stage, visit): RemainingHistory(queries, seconds)
                for stage, visit, queries, seconds in visits
            }
            self._history_read_at = time.monotonic()
        return self._history


class _ConnectionLost(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _told_when_lost(connection: Connection) -> Iterator[None]:
    """Never give a connection back to the pool whose server is gone."""
    try:
        yield
    except Exception as error:
        if not was_lost(connection, error):
            raise
        connection.invalidate()
        raise _ConnectionLost(error) from error


_Outcome = tuple[_Job, Any, Exception | None]


def _run(jobs: list[_Job], tx: Transaction) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for job in jobs:
        try:
            outcomes.append((job, job.operation(tx), None))
        except HexprefectError as error:
            # Guards raise before they change anything: the others' commit stands.
            outcomes.append((job, None, error))
    settle(tx)
    return [(job, job.finally_of(tx, value, error), error) for job, value, error in outcomes]


def _resolve(future: Future[Any], value: Any, error: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
