"""This process's part in the queue that all processes share.

There is no scheduler daemon: the queue is in the store, and every process follows the same rules. A
`SharedQueue` submits, hears of admissions, keeps its leases alive, and sends requests to instances.
It belongs to one event loop, on which thousands of requests may be in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from hexprefect.completion import Prompt
from hexprefect.errors import HexprefectError
from hexprefect.instances.client import InstanceClient
from hexprefect.queue.directory import EndpointDirectory
from hexprefect.queue.foreign_load import ForeignLoad
from hexprefect.queue.health import FleetHealth
from hexprefect.queue.query import Query
from hexprefect.queue.request import QueuedRequest
from hexprefect.queue.values import (
    NoInstanceInTime,
    QueueClosed,
    QueueOptions,
    ResolveSecret,
    environment_secret,
)
from hexprefect.queue.watch import Watch, watch_for
from hexprefect.scheduling import Profile, RequestSize, Workflow, completion_seconds
from hexprefect.store import (
    Grant,
    LeaseLost,
    NewQuery,
    NewRequest,
    Store,
    StoreUnavailable,
    leases,
)
from hexprefect.store import queries as move_query
from hexprefect.store import transitions as move_request
from hexprefect.store.store import Operation
from hexprefect.store.transaction import Transaction
from hexprefect.store.upgrade import require_current
from hexprefect.store.values import QueryEnded

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEAVE_S = 5.0
"""How long a process that ends waits for the store to let it go: its lease ends by itself."""

SLICE_S = 5.0
"""How often a waiting request looks whether any instance serves at all."""


class SharedQueue:
    """Open with `async with SharedQueue(url) as queue`.

    Args:
        url: of the store.
        options: patience and heartbeat.
        client: to reach instances with; one of its own by default.
        resolve_secret: gives the API key that an instance's `api_key_block` names.
    """

    def __init__(
        self,
        url: str,
        *,
        options: QueueOptions | None = None,
        client: InstanceClient | None = None,
        resolve_secret: ResolveSecret = environment_secret,
    ) -> None:
        self.options = options or QueueOptions()
        self.store = Store(
            url,
            on_granted=self._granted_in_store_thread,
            patience_s=self.options.store_patience_s,
        )
        self.client = client or InstanceClient()
        self._own_client = client is None
        self.directory = EndpointDirectory(self.store, resolve_secret)
        self.health = FleetHealth(
            self.store, self.client, self.directory, probe_every_s=self.options.probe_every_s
        )
        self.foreign_load = ForeignLoad(
            self.store, self.client, self.directory, look_every_s=self.options.look_every_s
        )
        self._grants: dict[str, asyncio.Future[Grant]] = {}
        self._owed: dict[str, Operation[object]] = {}
        """Ends of requests and of queries, by their ids, that the store could not take yet."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch: Watch | None = None
        self._beating: threading.Thread | None = None
        self._stopped = threading.Event()

    # -- its life -------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Join the queue.

        Raises:
            StoreNotReady: when the store's tables are missing or of another version.
        """
        try:
            await self._join()
        except BaseException:
            await self.close()
            raise
        return self

    async def _join(self) -> None:
        await asyncio.to_thread(require_current, self.store.engine)
        await asyncio.to_thread(self.store.read_clock)
        self._loop = asyncio.get_running_loop()
        await self.store.run(lambda tx: leases.join(tx, lease_s=self.options.lease_s))
        self._watch = watch_for(self.store, self._claim_admitted, every_s=self.options.poll_every_s)
        self._watch.start()
        self._beating = threading.Thread(target=self._beat, name="hexprefect-beat", daemon=True)
        self._beating.start()
        self.health.start()
        self.foreign_load.start()

    async def close(self) -> None:
        """Leave the queue: what this process still holds is ended, and its slots go to others."""
        self._stopped.set()
        await self.health.stop()
        await self.foreign_load.stop()
        if self._watch is not None:
            await asyncio.to_thread(self._watch.stop)
        if self._beating is not None:
            await asyncio.to_thread(self._beating.join, 5.0)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.store.run(leases.leave), LEAVE_S)
        for request_id, waiting in self._grants.items():
            if not waiting.done():
                waiting.set_exception(QueueClosed(f"Request {request_id} was left waiting."))
                waiting.exception()  # it is no mistake if nobody asks for it
        await asyncio.to_thread(self.store.close)
        if self._own_client:
            await self.client.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- what it is for -------------------------------------------------------------------------

    async def query(
        self,
        *,
        slo_s: float,
        tenant: str = "default",
        database: str = "",
        question: str | None = None,
        workflow: Workflow | None = None,
        arrived_at: float | None = None,
        id: str | None = None,
    ) -> Query:
        """Register a query, or resume the one of this id.

        Raises:
            UnknownTenant: when the tenant is not known or is disabled.
            CallerMistake: when the SLO is nonsense.
        """
        new = NewQuery(
            id=id or uuid.uuid4().hex,
            tenant=tenant,
            database=database,
            slo_s=slo_s,
            arrived_at=self.store.now() if arrived_at is None else arrived_at,
            question=question,
        )
        self._owed.pop(new.id, None)
        known = await self.store.run(lambda tx: move_query.register_query(tx, new))
        return Query(self, new, deadline=known.deadline, resumed=known.resumed, workflow=workflow)

    async def submit(self, new: NewRequest) -> QueuedRequest:
        """Hand in one request; see `Query.submit`."""
        self.expect(new.id)
        self._owed.pop(new.id, None)
        submission = asyncio.wrap_future(self.store.enqueue_submit(new))
        try:
            submitted = await asyncio.shield(submission)
        except asyncio.CancelledError:
            # It is in the store, or will be: its end is handed in after it and so comes after it.
            self.cancel_soon(new.id, why="its caller was cancelled")
            raise
        except Exception as error:
            self.forget(new.id)
            self.end_doubtful(new.id, error)
            raise
        if submitted.grant is not None or submitted.result is not None:
            self.forget(new.id)
        elif submitted.state not in ("waiting", "admitted", "running"):
            self.forget(new.id)
            raise QueryEnded(f"Query {new.query_id} ended while {new.id} was submitted.")
        return QueuedRequest(self, new, submitted)

    async def wait_for_grant(self, new: NewRequest) -> Grant:
        """Wait until an instance takes a submitted request.

        Raises:
            NoInstanceInTime: when patience ends.
            LeaseLost: when it was ended meanwhile, because this process was taken for dead.
        """
        waiting = self.expect(new.id)
        without_instance_s = 0.0
        # A flow run that came late already, or is run again the next day, may wait as long as one
        # that became late here.
        began = max(new.deadline, self.store.now())
        slice_s = min(SLICE_S, self.options.outage_patience_s, self.options.lease_s)
        try:
            while True:
                since = time.monotonic()
                done, _ = await asyncio.wait({waiting}, timeout=slice_s)
                if done:
                    return waiting.result()
                state = (await self.directory.open_requests(since=since)).get(new.id)
                if state is None:
                    raise LeaseLost(f"Request {new.id} was ended while it waited.")
                if state != "waiting":
                    # The news of it was lost with a connection, or is on its way.
                    grant = await self.store.run(
                        lambda tx: move_request.claim(tx, request_id=new.id)
                    )
                    if grant is not None:
                        return grant
                views = await self.directory.views()
                serving = [view for view in views.values() if view.state in ("alive", "suspect")]
                without_instance_s = 0.0 if serving else without_instance_s + slice_s
                if without_instance_s >= self.options.outage_patience_s:
                    raise self._no_instance(new, "no instance is alive")
                now = self.store.now()
                if now - began > self.options.overdue_patience_s:
                    overdue = now - new.deadline
                    raise self._no_instance(new, f"it is {overdue:.0f} s past its deadline")
        finally:
            self.forget(new.id)

    def timeout_s(self, profile: Profile, prompt: Prompt, depth: int) -> float:
        """Seconds an instance gets to answer: several times the longest that it should take.

        Not the time to the deadline: a request on an instance that hangs is to move while there is
        time left. The longest is with nothing cached, a full batch, and an answer as long as is
        allowed.
        """
        longest = RequestSize(prompt.estimated_input_tokens(), prompt.max_output_tokens)
        return max(
            self.options.shortest_timeout_s,
            self.options.timeout_factor * completion_seconds(longest, profile, batch=depth),
        )

    def start_from_thread(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the queue's loop, from another thread."""
        assert self._loop is not None, "the queue is not started"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cancel_soon(self, request_id: str, *, why: str) -> None:
        """Cancel a request without waiting for it."""
        self.forget(request_id)

        def cancel(tx: Transaction) -> object:
            return move_request.cancel(tx, request_id=request_id, why=why)

        def done(cancelled: Future[object]) -> None:
            if not cancelled.cancelled() and isinstance(cancelled.exception(), StoreUnavailable):
                self.owe(request_id, cancel)

        with contextlib.suppress(RuntimeError):  # a closed store has released it already
            self.store.enqueue(cancel).add_done_callback(done)

    def end_doubtful(self, request_id: str, error: Exception) -> None:
        """Cancel a request of which a transition has failed, unless its guard had refused it.

        Nobody will end it otherwise: it would hold its slot for as long as this process lives.
        """
        if isinstance(error, StoreUnavailable) or not isinstance(error, HexprefectError):
            self.cancel_soon(request_id, why=f"the store did not take its end: {error}")

    def owe(self, id: str, end: Operation[object]) -> None:
        """Tell the store of an end when it is back, which is tried with each heartbeat.

        Args:
            id: of the request or the query that has ended; it owes nothing once it begins anew.
            end: the transition.
        """
        self._owed[id] = end

    def forget(self, request_id: str) -> None:
        """Nobody waits for this grant any more."""
        self._grants.pop(request_id, None)
        if self._watch is not None:
            self._watch.wanted(bool(self._grants))

    # -- grants ---------------------------------------------------------------------------------

    def expect(self, request_id: str) -> asyncio.Future[Grant]:
        """The future of a grant; to be made before the transition that may bring it."""
        assert self._loop is not None, "the queue is not started"
        future = self._grants.get(request_id)
        if future is None:
            future = self._grants[request_id] = self._loop.create_future()
            if self._watch is not None:
                self._watch.wanted(True)
        return future

    def _granted_in_store_thread(self, grants: Sequence[Grant]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._granted, tuple(grants))

    def _granted(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            future = self._grants.get(grant.request_id)
            if future is not None and not future.done():
                future.set_result(grant)

    def _claim_admitted(self) -> None:
        """Called by the watch's thread: take up what others have admitted for us."""

        def claim(future: object) -> None:
            with contextlib.suppress(Exception):
                self._granted_in_store_thread(claimed.result())

        with contextlib.suppress(RuntimeError):
            claimed = self.store.enqueue(move_request.start_admitted)
            claimed.add_done_callback(claim)

    # -- heartbeat ------------------------------------------------------------------------------

    def _beat(self) -> None:
        beaten_at = self.store.now()
        while not self._stopped.wait(self.options.beat_every_s):
            try:
                self.store.read_clock()
                alive = self.store.enqueue(
                    lambda tx: leases.beat(tx, lease_s=self.options.lease_s)
                ).result(timeout=self.options.lease_s)
                if not alive:
                    logger.warning(
                        "This process was taken for dead after %.0f s without a heartbeat; "
                        "what it held was given away.",
                        self.options.lease_s,
                    )
                silent_s, beaten_at = self.store.now() - beaten_at, self.store.now()
                if silent_s <= max(self.options.lease_s, 2 * self.options.beat_every_s):
                    self.store.enqueue(leases.expire).result(timeout=self.options.lease_s)
                # Else the store was away, or this machine slept, and what kept us from beating
                # may have kept the others: they are given until our next beat.
                self._pay()
            except Exception:
                logger.warning("A heartbeat failed; trying again.", exc_info=True)

    def _pay(self) -> None:
        """Tell the store of the ends that it could not take when they came."""
        for id, end in tuple(self._owed.items()):
            try:
                self.store.enqueue(end).result(timeout=self.options.lease_s)
            except StoreUnavailable:
                return
            except Exception:
                logger.warning("%s could not be ended in the store.", id, exc_info=True)
            if self._owed.get(id) is end:
                self._owed.pop(id, None)

    def _no_instance(self, new: NewRequest, why: str) -> NoInstanceInTime:
        return NoInstanceInTime(
            f"No instance took the {new.stage} request {new.id}: {why}.",
            remedy="See `hexprefect instances list`; start an instance, or allow more time.",
        )
