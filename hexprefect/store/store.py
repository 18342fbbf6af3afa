"""The store as a process uses it: transitions go in, are committed together, results come out."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, select, text

from hexprefect.errors import HexprefectError
from hexprefect.scheduling.prediction import StageHistory
from hexprefect.store import tables
from hexprefect.store.engine import open_engine, take_scheduling_lock
from hexprefect.store.transaction import Transaction
from hexprefect.store.transitions import submit, submitted
from hexprefect.store.values import Grant, NewRequest, Submitted

T = TypeVar("T")
Operation = Callable[[Transaction], T]

MOST_TOGETHER = 64
"""Transitions in one commit: bounds how long others wait for the scheduling lock."""

HISTORY_AGE_S = 2.0
"""Stage histories are predictions: a process reads the others' news this often."""


@dataclass(slots=True)
class _Job:
    operation: Operation[Any]
    after: Callable[[Transaction], Any] | None
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
    """

    def __init__(
        self,
        url: str,
        *,
        process: str | None = None,
        on_granted: Callable[[Sequence[Grant]], None] | None = None,
    ) -> None:
        self.url = url
        self.process = process or uuid.uuid4().hex
        self.engine: Engine = open_engine(url)
        self.on_granted = on_granted
        self._clock_offset_s = 0.0
        self._history: dict[tuple[str, str], StageHistory] = {}
        self._history_read_at = -1e9
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._starting = threading.Lock()
        if self.engine.dialect.name == "postgresql":
            self.read_clock()

    # -- time -----------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds since the epoch by the store's clock, on which all processes agree."""
        return time.time() + self._clock_offset_s

    def read_clock(self) -> None:
        """Compare this machine's clock with that of the database server."""
        if self.engine.dialect.name != "postgresql":
            return
        with self.engine.connect() as connection:
            before = time.time()
            theirs = connection.execute(
                text("SELECT extract(epoch FROM clock_timestamp())")
            ).scalar_one()
            self._clock_offset_s = float(theirs) - (before + time.time()) / 2

    # -- writing --------------------------------------------------------------------------------

    async def run(self, operation: Operation[T]) -> T:
        """Run one transition; returns when it is committed."""
        return cast(T, await asyncio.wrap_future(self.enqueue(operation)))

    async def submit(self, request: NewRequest) -> Submitted:
        """The transition `submit`, with what became of it."""
        return await asyncio.wrap_future(self.enqueue_submit(request))

    def enqueue(self, operation: Operation[T]) -> Future[T]:
        """Hand in a transition from any thread."""
        return self._enqueue(_Job(operation, None))

    def enqueue_submit(self, request: NewRequest) -> Future[Submitted]:
        """Hand in a submission from any thread."""
        return self._enqueue(
            _Job(lambda tx: submit(tx, request), lambda tx: submitted(tx, request))
        )

    def transact(self, operation: Operation[T]) -> T:
        """Run one transition in the calling thread: for command lines and tests."""
        job = _Job(operation, None)
        self._commit([job])
        return cast(T, job.future.result())

    # -- reading --------------------------------------------------------------------------------

    def read(self, look: Callable[[Connection], T]) -> T:
        """Look at the store without taking the scheduling lock."""
        with self.engine.connect().execution_options(hexprefect_read_only=True) as connection:
            return look(connection)

    async def read_async(self, look: Callable[[Connection], T]) -> T:
        """`read`, in a thread."""
        return await asyncio.to_thread(self.read, look)

    # -- its end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what was handed in, then close every connection."""
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
        outcomes: list[tuple[_Job, Any, Exception | None]] = []
        try:
            with self.engine.connect() as connection, connection.begin():
                take_scheduling_lock(connection)
                tx = self._transaction(connection)
                for job in jobs:
                    try:
                        outcomes.append((job, job.operation(tx), None))
                    except HexprefectError as error:
                        # Guards raise before they change anything: the others' commit stands.
                        outcomes.append((job, None, error))
                tx.settle()
                outcomes = [
                    (job, job.finally_of(tx, value, error), error) for job, value, error in outcomes
                ]
                tx.flush()
        except Exception as error:
            self._history_read_at = -1e9
            if len(jobs) > 1:
                for job in jobs:
                    self._commit([job])
            else:
                _resolve(jobs[0].future, None, error)
            return
        if tx.granted and self.on_granted is not None:
            self.on_granted(tx.granted)
        for job, value, failure in outcomes:
            _resolve(job.future, value, failure)

    def _transaction(self, connection: Connection) -> Transaction:
        if time.monotonic() - self._history_read_at > HISTORY_AGE_S:
            rows = connection.execute(select(tables.stage_history))
            self._history = {
                (stage, database): StageHistory(count, read, written)
                for stage, database, count, read, written in rows
            }
            self._history_read_at = time.monotonic()
        return Transaction(connection, now=self.now(), process=self.process, history=self._history)


def _resolve(future: Future[Any], value: Any, error: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
