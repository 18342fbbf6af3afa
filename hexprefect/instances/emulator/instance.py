"""An emulated instance: the engine on the clock, its faults, its counts. No HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from hexprefect.instances.emulator.content import Answer, Content
from hexprefect.instances.emulator.engine import Engine, Sequence
from hexprefect.instances.emulator.fault import Fault
from hexprefect.instances.emulator.metrics import InstanceMetrics
from hexprefect.instances.emulator.protocol import Generation, ProtocolError
from hexprefect.instances.errors import InstanceError

_STREAM_EVERY_S = 0.02


class EngineDead(Exception):
    """The engine behind the server has died."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When one request got how far, in seconds of the wall clock, as vLLM reports it."""

    queue_s: float
    prefill_s: float
    decode_s: float
    first_token_s: float
    whole_s: float


class EmulatedInstance:
    """Runs generations through the engine in scaled time. One event loop, one timer, no tasks.

    Args:
        engine: idle.
        content: what to say.
        time_scale: emulated seconds in one second of the wall clock.
        seed: of the choice which requests a fault strikes.
    """

    def __init__(
        self,
        engine: Engine,
        content: Content,
        metrics: InstanceMetrics,
        *,
        time_scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.engine = engine
        self.content = content
        self.metrics = metrics
        self.time_scale = time_scale
        self.fault: Fault | None = None
        self.in_flight = 0
        """Requests that the server has taken and not answered."""
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._finish: dict[Sequence, asyncio.Future[None]] = {}

    def set_fault(self, fault: Fault | None) -> None:
        """Break the instance in some way, or mend it."""
        self.fault = fault
        now = self._now()
        self._collect(now)
        self.engine.slow_down(fault.factor if fault and fault.kind == "slow" else 1.0, now)
        self._set_timer()
        if fault is not None and fault.kind == "engine-death":
            self.fail_all(EngineDead())

    def strikes(self, kind: str) -> bool:
        """Whether a fault of this kind happens to the present request."""
        fault = self.fault
        if fault is None or fault.kind != kind:
            return False
        return fault.share >= 1.0 or self._random.random() < fault.share

    async def generate(self, generation: Generation) -> tuple[Answer, Timing, Sequence]:
        """Run a whole generation. Cancelling it frees its slot and blocks.

        Raises:
            EngineDead: the engine died meanwhile.
            ProtocolError: the server behind failed.
        """
        answer, sequence = await self._begin(generation)
        try:
            await self._finish[sequence]
        finally:
            self._end(sequence)
        return answer, self._timing(sequence), sequence

    async def stream(
        self, generation: Generation
    ) -> AsyncIterator[tuple[str, Answer, Sequence, Timing | None]]:
        """Run a generation and yield its text as it comes; the last item has the timing.

        Raises:
            EngineDead: the engine died meanwhile.
            ProtocolError: the server behind failed.
        """
        answer, sequence = await self._begin(generation)
        finish = self._finish[sequence]
        sent = 0
        try:
            while not finish.done():
                await asyncio.wait((finish,), timeout=self._stream_pause(sequence))
                if finish.done():
                    finish.result()
                said = self.engine.generated(sequence, self._now())
                upto = len(answer.text) * said // sequence.output_tokens
                if upto > sent and not finish.done():
                    yield answer.text[sent:upto], answer, sequence, None
                    sent = upto
            yield answer.text[sent:], answer, sequence, self._timing(sequence)
        finally:
            self._end(sequence)

    def fail_all(self, error: Exception) -> None:
        """Fail everything that is inside."""
        for finish in list(self._finish.values()):
            if not finish.done():
                finish.set_exception(error)

    def close(self) -> None:
        """Stop the clock and cancel everything that is inside."""
        if self._timer is not None:
            self._timer.cancel()
        for finish in list(self._finish.values()):
            finish.cancel()

    # -- one request ---------------------------------------------------------------------------

    async def _begin(self, generation: Generation) -> tuple[Answer, Sequence]:
        if self.fault is not None and self.fault.kind == "engine-death":
            raise EngineDead
        try:
            answer = await self.content.answer(generation)
        except InstanceError as failure:
            # The server behind failed: this one fails the same way.
            status = failure.status or 500
            raise ProtocolError(
                str(failure), status=status, kind=type(failure).__name__
            ) from failure
        sequence = Sequence(
            prompt_tokens=generation.prompt_tokens,
            output_tokens=min(max(1, answer.output_tokens), generation.max_tokens),
            priority=generation.priority,
            block_hashes=generation.block_hashes(),
        )
        now = self._now()
        self._collect(now)
        self._finish[sequence] = self._loop.create_future()
        self.engine.submit(sequence, now)
        self._set_timer()
        return answer, sequence

    def _end(self, sequence: Sequence) -> None:
        finish = self._finish.pop(sequence, None)
        if sequence.finished_at is None:
            if finish is not None and not finish.done():
                finish.cancel()
            now = self._now()
            self._collect(now)
            self.engine.abort(sequence, now)
            self._set_timer()

    def _timing(self, sequence: Sequence) -> Timing:
        assert sequence.first_scheduled_at is not None
        assert sequence.first_token_at is not None
        assert sequence.finished_at is not None
        scale = self.time_scale
        timing = Timing(
            queue_s=(sequence.first_scheduled_at - sequence.arrived_at) / scale,
            prefill_s=(sequence.first_token_at - sequence.first_scheduled_at) / scale,
            decode_s=(sequence.finished_at - sequence.first_token_at) / scale,
            first_token_s=(sequence.first_token_at - sequence.arrived_at) / scale,
            whole_s=(sequence.finished_at - sequence.arrived_at) / scale,
        )
        self.metrics.finished(sequence, timing)
        return timing

    def _stream_pause(self, sequence: Sequence) -> float:
        """How long a stream may rest: tokens that come within a blink are sent together."""
        return _STREAM_EVERY_S if sequence.first_scheduled_at is not None else _STREAM_EVERY_S * 2

    # -- the clock -----------------------------------------------------------------------------

    def _now(self) -> float:
        return (self._loop.time() - self._origin) * self.time_scale

    def _due(self) -> None:
        self._timer = None
        self._collect(self._now())
        self._set_timer()

    def _collect(self, now: float) -> None:
        """Let the engine catch up and wake those whose request has finished."""
        for sequence in self.engine.advance(now):
            finish = self._finish.get(sequence)
            if finish is not None and not finish.done():
                finish.set_result(None)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.engine.next_at
        if due is not None:
            # A hair late rather than early: an early timer finds nothing to do.
            at = self._origin + due / self.time_scale + 1e-4
            self._timer = self._loop.call_at(at, self._due)
