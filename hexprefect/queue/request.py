"""One request of this process, from its submission to its end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hexprefect.completion import Completion, Prompt
from hexprefect.instances.endpoint import Endpoint
from hexprefect.instances.errors import InstanceError, InstanceRefused, PromptRejected
from hexprefect.store import Grant, LeaseLost, NewRequest, Outcome, Submitted
from hexprefect.store import transitions as move_request
from hexprefect.store.store import Operation
from hexprefect.store.values import NoInstanceFits

if TYPE_CHECKING:
    from hexprefect.queue.shared_queue import SharedQueue

PRIORITY_EPOCH = 1_700_000_000
PRIORITY_PER_SECOND = 10
"""vLLM orders by an integer, lower first: tenths of a second of the order's key fit into 32 bits
until 2030 and mean the same on every instance."""

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
"""How long an instance that sheds load is left in peace, doubled each time, if it does not say."""
LONGEST_OBEYED_S = 30.0
"""What it says is believed up to this long: it may be alone, and the deadline is near."""


class QueuedRequest:
    """A submitted request. Create it with `Query.submit`.

    Wait with `admitted`, talk to the appointed instance with `complete`, and end it with exactly
    one of `finish`, `fail` and `cancel`.
    """

    def __init__(self, queue: SharedQueue, new: NewRequest, submitted: Submitted) -> None:
        self._queue = queue
        self._new = new
        self.alpha = submitted.alpha
        self.instance = submitted.instance
        """Where it waits or runs, as far as this process knows."""
        self.grant: Grant | None = submitted.grant
        self.reused: Mapping[str, Any] | None = submitted.result
        """The kept result of the same request of a query that was started again, else `None`."""
        self.moves = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.called = False
        self.untold = False
        """Whether a server left out how many tokens a call took: then nobody knows the sum."""
        self._shed: dict[str, tuple[int, float]] = {}
        """How often an instance shed this request, and when it may be asked again."""
        self._blocking: set[Future[Completion]] = set()
        self._blocking_lock = threading.Lock()
        self._no_more_blocking = False

    @property
    def id(self) -> str:
        """Of the request, in the store."""
        return self._new.id

    @property
    def stage(self) -> str:
        """The kind of call."""
        return self._new.stage

    @property
    def attempt(self) -> int:
        """Number of the attempt that runs, 0 before the first."""
        return self.grant.attempt if self.grant else 0

    @property
    def waited_s(self) -> float:
        """Seconds from being ready to being started."""
        if self.grant is None:
            return 0.0
        return max(0.0, self.grant.started_at - self.grant.ready_at)

    async def admitted(self) -> Grant:
        """Wait until an instance takes the request.

        Raises:
            NoInstanceInTime: when patience ends; the request is cancelled then.
            LeaseLost: when it was ended meanwhile, because this process was taken for dead.
            QueueClosed: when this process leaves the queue.
        """
        if self.grant is None:
            try:
                self.grant = await self._queue.wait_for_grant(self._new)
            except LeaseLost:
                raise
            except BaseException:
                # Whatever it was: nobody would take the grant.
                self._queue.cancel_soon(self.id, why="it was not waited for any longer")
                raise
            self.instance = self.grant.instance
        return self.grant

    async def complete(self, prompt: Prompt) -> Completion:
        """Have the appointed instance complete `prompt`; move to another when it fails.

        Raises:
            InstanceError: when the request is at fault, or has moved too often.
            NoInstanceInTime: when no other instance takes it.
        """
        while True:
            grant = await self.admitted()
            try:
                endpoint = await self._queue.directory.endpoint(grant.instance)
            except InstanceRefused as error:
                # We have no key for it: that is no evidence about the instance.
                await self._give_back_or_raise(error)
                continue
            if (pause_s := self._pause_s(grant.instance)) > 0:
                await asyncio.sleep(pause_s)
                # In an attempt of its own: the instance's profile is learned from those that end.
                await self.give_back(f"{grant.instance} was left in peace", counts=False)
                continue
            view = await self._queue.directory.view(grant.instance)
            try:
                completion = await self._queue.client.complete(
                    endpoint,
                    prompt,
                    timeout_s=self._queue.timeout_s(
                        view.profile, prompt, view.spec.admission_depth or view.spec.slots
                    ),
                    priority=engine_priority(grant.order_key),
                )
            except PromptRejected as error:
                await self._queue.health.failed(grant.instance, error)
                if error.status == 404:
                    # No such route or model: wrong is how this instance is described.
                    await self._give_back_or_raise(error)
                else:
                    await self._outgrow(grant, error)
                continue
            except InstanceError as error:
                if isinstance(error, InstanceRefused) and await self._has_new_key(endpoint):
                    continue
                await self._queue.health.failed(grant.instance, error)
                if error.kind == "overloaded" and self._may_still_wait():
                    self._leave_in_peace(grant.instance, error.retry_after_s)
                    await self.give_back(str(error), counts=False)
                else:
                    await self._give_back_or_raise(error)
                continue
            self._queue.health.succeeded(grant.instance)
            self.called = True
            self.untold = self.untold or not _tells_tokens(completion)
            self.input_tokens += completion.input_tokens
            self.output_tokens += completion.output_tokens
            self.cached_tokens += completion.cached_tokens
            return replace(
                completion,
                instance=grant.instance,
                request_id=self.id,
                waited_s=self.waited_s,
                attempt=grant.attempt,
            )

    async def _has_new_key(self, refused: Endpoint) -> bool:
        """Whether the key was changed since this process read it."""
        with contextlib.suppress(InstanceRefused):
            return await self._queue.directory.key_has_changed(refused)
        return False

    async def _give_back_or_raise(self, error: InstanceError) -> None:
        """Let another instance have it, unless it has moved too often, or none would take it."""
        movable = error.movable or error.status == 404
        if not movable or self.moves >= self._queue.options.most_moves:
            raise error
        await self.give_back(str(error))

    def _leave_in_peace(self, instance: str, wanted_s: float | None) -> None:
        """Remember that an instance sheds load; another may take the request meanwhile."""
        times = self._shed.get(instance, (0, 0.0))[0] + 1
        if wanted_s is None:
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(times - 1, 10))
            # Not all that were shed together are to come back together.
            pause_s *= random.uniform(0.5, 1.0)
        else:
            pause_s = min(LONGEST_OBEYED_S, wanted_s)
        self._shed[instance] = (times, time.monotonic() + pause_s)

    def _pause_s(self, instance: str) -> float:
        """How long it must not be asked yet. The slot is held: it has no other to give anyway."""
        return max(0.0, self._shed.get(instance, (0, 0.0))[1] - time.monotonic())

    def _may_still_wait(self) -> bool:
        """As for one that waits in the queue: late is better than never, up to a point."""
        overdue_s = self._queue.store.now() - self._new.deadline
        return overdue_s <= self._queue.options.overdue_patience_s

    async def _outgrow(self, grant: Grant, error: PromptRejected) -> None:
        """Let a larger instance have a prompt that was too long for this one.

        Raises:
            PromptRejected: the request is at fault in another way, or no instance is larger.
        """
        tokens = error.n_prompt_tokens
        if not error.too_long or tokens is None or self.moves >= self._queue.options.most_moves:
            raise error
        self._queue.expect(self.id)
        try:
            await self._run(
                lambda tx: move_request.outgrow(
                    tx,
                    request_id=self.id,
                    attempt=grant.attempt,
                    input_tokens=tokens,
                    context_tokens=error.n_ctx,
                    why=str(error)[:500],
                )
            )
        except BaseException as problem:
            self._queue.forget(self.id)
            if isinstance(problem, NoInstanceFits):
                raise error from None
            raise
        self.grant = None
        self.moves += 1

    def complete_blocking(self, prompt: Prompt) -> Completion:
        """`complete`, for a synchronous task body: it runs in a thread of its own.

        Raises:
            concurrent.futures.CancelledError: when the task was cancelled or ran out of time.
        """
        with self._blocking_lock:
            if self._no_more_blocking:
                raise CancelledError("The task that this request belongs to has ended.")
            call = self._queue.start_from_thread(self.complete(prompt))
            self._blocking.add(call)
        try:
            return call.result()
        finally:
            self._blocking.discard(call)

    def stop_blocking_calls(self) -> None:
        """Cancel what `complete_blocking` waits for: its thread cannot be interrupted itself."""
        with self._blocking_lock:
            self._no_more_blocking = True
            for call in tuple(self._blocking):
                call.cancel()

    async def give_back(self, why: str, *, counts: bool = True) -> None:
        """Let another instance have it: running → waiting.

        Args:
            why: kept with the decision and the attempt.
            counts: among the moves after which it is given up.
        """
        grant, self.grant = self.grant, None
        if grant is None:
            return
        self.moves += counts
        self._queue.expect(self.id)
        await self._run(
            lambda tx: move_request.give_back(
                tx, request_id=self.id, attempt=grant.attempt, why=why[:500]
            )
        )

    async def finish(self, result: Mapping[str, Any] | None = None) -> None:
        """End it with a result, which is kept for a restart of its query.

        Raises:
            LeaseLost: when it was given away meanwhile.
        """
        grant = self._held()
        told = self.called and not self.untold
        outcome = Outcome(
            result=result,
            # What is not known is not learned from: 0 would make every answer free.
            input_tokens=self.input_tokens if told else None,
            output_tokens=self.output_tokens if told else None,
            cached_tokens=self.cached_tokens if told else 0,
        )
        await self._run(
            lambda tx: move_request.finish(
                tx,
                request_id=self.id,
                attempt=grant.attempt,
                outcome=outcome,
                database=self._new.database,
            )
        )

    async def fail(self, error: str) -> None:
        """End this attempt without a result; submitting the same request again is the next one."""
        grant = self._held()
        await self._run(
            lambda tx: move_request.fail(
                tx, request_id=self.id, attempt=grant.attempt, error=error[:2000]
            )
        )

    async def cancel(self, why: str) -> None:
        """End it in whatever state it is; waits until its slot is free."""
        self._queue.forget(self.id)
        await self._run(lambda tx: move_request.cancel(tx, request_id=self.id, why=why[:500]))

    def cancel_soon(self, why: str) -> None:
        """As `cancel`, without waiting: for code that is itself being cancelled."""
        self._queue.cancel_soon(self.id, why=why)

    async def _run(self, transition: Operation[object]) -> None:
        """Run a transition of this request; one that fails leaves it cancelled, not forgotten."""
        try:
            await self._queue.store.run(transition, about=self.id)
        except Exception as error:
            self._queue.end_doubtful(self.id, error)
            raise

    def _held(self) -> Grant:
        if self.grant is None:
            raise RuntimeError(f"request {self.id} does not run")
        return self.grant


def _tells_tokens(completion: Completion) -> bool:
    """Whether a server said how many tokens it read and wrote: no prompt is of none."""
    wrote = completion.output_tokens > 0 or not completion.text
    return completion.input_tokens > 0 and wrote


def engine_priority(order_key: float) -> int:
    """Our urgency as vLLM's integer priority, lower first, the same on every instance."""
    return round((order_key - PRIORITY_EPOCH) * PRIORITY_PER_SECOND)
