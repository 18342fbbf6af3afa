"""A model instance with continuous batching, exact at events and without a step per token.

The engine works in steps, like vLLM's: every running sequence gets one token a step, and what is
left of the step's token budget goes to prompts (chunked prefill), or a prompt stops the decoding
until it is done (prefill first). Between two events the batch does not change, so that the time of
`n` steps has a closed form and an event costs the same for 10 tokens as for 1,000:

`Σ_{i<n} (base + slope·i) = n·base + slope·n·(n−1)/2`, with
`base = b·(1 + growth·(k−1)) + attention·C·(k−1)/k` and `slope = attention·(k−1)`

for `k` sequences with `C` context tokens together. The context read by a sequence that is alone is
already in its `b` (the profile is fitted so), so only that of its neighbours is added. Hence one
request on an idle instance takes exactly `c + a·input + b·output` seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf, sqrt

from hexprefect.scheduling import Profile
from hexprefect.simulator.engine_memory import EngineMemory
from hexprefect.simulator.engine_values import EngineJob, EngineOptions

_LEAST_CHUNK = 16
"""Prompt tokens of a step at least, also where the running sequences take the whole budget."""

_IDLE, _DECODE, _CHUNK, _PACK, _FIRST = range(5)

_NOBODY: Sequence[EngineJob] = ()
"""What most events end: shared, so that they make no list."""


class Engine(EngineMemory):
    """One instance. Drive it with `submit`, `next_at` and `advance`; time is in seconds.

    `submit`, `advance` and the planning below are called two to three times for each request of a
    simulation: they are written to read an attribute once and to call nothing in the common case.
    """

    __slots__ = (
        "_attention",
        "_batched",
        "_by_batch",
        "_by_priority",
        "_clock",
        "_context",
        "_decode_s",
        "_fixed_s",
        "_growth",
        "_head_left",
        "_heap",
        "_input_s",
        "_phase",
        "_phase_steps",
        "_plan_prompts",
        "_sequence",
        "_slots",
        "_step",
        "_step_tokens",
        "next_at",
        "options",
        "preemptions",
        "profile",
        "waiting",
    )  # fmt: skip

    def __init__(self, profile: Profile, options: EngineOptions) -> None:
        super().__init__(profile.kv_tokens, options)
        self.profile = profile
        self.options = options
        self._fixed_s = profile.fixed_s
        self._input_s = profile.input_s_per_token
        self._decode_s = profile.output_s_per_token
        self._growth = profile.batch_growth
        self._attention = options.attention_s_per_token
        self._by_priority = options.scheduling == "priority"
        self._plan_prompts = self._plan_first if options.prefill == "first" else self._plan_chunked
        """Begins with the first waiting prompt, which may."""
        self._slots = options.slots
        self._step_tokens = options.step_tokens
        self._clock = 0.0
        self._step = 0
        """Decode steps done since the beginning, at `_clock`."""
        self._context = 0
        """Context tokens of the decoding sequences, at `_clock`."""
        self._heap: list[tuple[int, int, EngineJob]] = []
        """Decoding sequences by the step at which they end."""
        self._by_batch: list[tuple[float, float, float, float]] = []
        """By batch size: see `_widen`."""
        self._widen()
        self._sequence = 0
        self._phase = _IDLE
        self._phase_steps = 0
        self._batched = _NOBODY
        """Prompts that end with the present phase."""
        self._head_left = 0
        """Tokens of the first waiting prompt not prefilled yet, once it has begun; else 0."""
        self.waiting: deque[EngineJob] = deque()
        self.next_at = inf
        self.preemptions = 0

    # -- state, as a value ---------------------------------------------------------------------

    @property
    def decoding(self) -> int:
        """Sequences that generate at present."""
        return len(self._heap)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits here."""
        return self._phase == _IDLE

    # -- events --------------------------------------------------------------------------------

    def submit(self, job: EngineJob, now: float) -> None:
        """Take a request at `now`; it joins at the next step boundary."""
        waiting = self.waiting
        if waiting and self._by_priority and job.priority < waiting[-1].priority:
            place = len(waiting)
            first = 1 if self._head_left else 0
            while place > first and waiting[place - 1].priority > job.priority:
                place -= 1
            waiting.insert(place, job)
        else:
            waiting.append(job)
        phase = self._phase
        if phase == _DECODE:
            if waiting[0] is job and self._may_begin():
                self._cut(now)
        elif phase == _IDLE:
            self._clock = now
            self._plan_prompts()

    def advance(self) -> Sequence[EngineJob]:
        """Do what is due at `next_at` and plan the next phase; returns the finished requests."""
        clock = self._clock = self.next_at
        heap = self._heap
        finished = _NOBODY
        steps = self._phase_steps
        if steps:
            self._step = step = self._step + steps
            grown = steps * len(heap)
            self._context += grown
            self._used += grown
            if heap and heap[0][0] <= step:
                finished = self._end(step)
        if self._batched:
            finished = self._join(finished)
        if self.waiting and (self._head_left or self._may_begin()):
            self._plan_prompts()
            return finished
        batch = len(heap)
        if not batch:
            self._phase = _IDLE
            self._phase_steps = 0
            self._context = 0
            self.next_at = inf
            return finished
        steps = heap[0][0] - self._step
        if self._limit - self._used - self.cached_total < steps * batch:
            steps = self._within_memory(steps)
            batch = len(heap)
        self._phase = _DECODE
        self._phase_steps = steps
        # `_decode_time(steps)`, written out because this is where most events end.
        number = float(steps)
        base, slope, others, sequences = self._by_batch[batch]
        base += self._attention * self._context * others / sequences
        self.next_at = clock + (number * base + slope * number * (number - 1.0) / 2.0)
        return finished

    def _end(self, step: int) -> list[EngineJob]:
        """Take off the sequences whose last token is that of `step`."""
        heap = self._heap
        cache = self._cache
        finished = []
        while heap and heap[0][0] <= step:
            job = heappop(heap)[2]
            grown = step - job.started_step
            self._context -= job.input_tokens + job.generated + grown
            # `_release`
            self._used -= job.private_tokens + grown
            for key, _ in job.pinned:
                cache[key][1] -= 1
            finished.append(job)
        return finished

    def _join(self, finished: Sequence[EngineJob]) -> Sequence[EngineJob]:
        """Let the sequences decode whose prompts are done; adds those without an answer."""
        step = self._step
        ended: list[EngineJob] = []
        for job in self._batched:
            job.started_step = step
            generated = job.generated
            remaining = job.output_tokens - generated
            if remaining > 0:
                self._context += job.input_tokens + generated
                self._sequence = sequence = self._sequence + 1
                heappush(self._heap, (step + remaining, sequence, job))
            else:
                self._release(job, 0)
                ended.append(job)
        self._batched = _NOBODY
        if len(self._heap) >= len(self._by_batch):
            self._widen()
        return [*finished, *ended] if ended else finished

    # -- planning ------------------------------------------------------------------------------

    def _plan_first(self) -> None:
        """Prefill the first waiting prompt while the sequences that run stand still."""
        job = self.waiting.popleft()
        self._begin(job)
        self._phase = _FIRST
        self._phase_steps = 0
        self._batched = [job]
        self.next_at = self._clock + self._fixed_s + self._input_s * job.uncached_tokens

    def _plan_chunked(self) -> None:
        """Share the next steps between the running sequences and the first waiting prompts."""
        heap = self._heap
        waiting = self.waiting
        head_left = self._head_left
        if not head_left:
            job = waiting[0]
            self._begin(job)
            self._head_left = head_left = job.uncached_tokens
        batch = len(heap)
        most = 0
        if batch:
            most = heap[0][0] - self._step
            if self._limit - self._used - self.cached_total < most * batch:
                most = min(self._within_memory(most), heap[0][0] - self._step)
                batch = len(heap)
        room = self._step_tokens - batch
        if room < _LEAST_CHUNK:
            room = _LEAST_CHUNK
        if head_left > room:
            steps = (head_left - 1) // room
            if batch and steps > most:
                steps = most
            tokens = steps * room
            self._head_left = head_left - tokens
            self._phase = _CHUNK
            self._phase_steps = steps
            self.next_at = self._clock + self._input_s * tokens
            if batch:
                self.next_at += self._decode_time(steps)
            return
        left = room - head_left
        tokens = head_left
        batched = [waiting.popleft()]
        self._head_left = 0
        while waiting and left > 0 and self._may_begin(len(batched)):
            job = waiting[0]
            self._begin(job)
            if job.uncached_tokens <= left:
                left -= job.uncached_tokens
                tokens += job.uncached_tokens
                batched.append(waiting.popleft())
            else:
                tokens += left
                self._head_left = job.uncached_tokens - left
                left = 0
        self._phase = _PACK
        self._phase_steps = 1
        self._batched = batched
        next_at = self._clock + self._input_s * tokens + self._fixed_s * len(batched)
        if batch:
            # `_decode_time(1)`
            base, _, others, sequences = self._by_batch[batch]
            next_at += base + self._attention * self._context * others / sequences
        self.next_at = next_at

    def _decode_time(self, steps: int) -> float:
        """The closed form at the top, for the batch that decodes at present."""
        base, slope, others, batch = self._by_batch[len(self._heap)]
        base += self._attention * self._context * others / batch
        return steps * base + slope * steps * (steps - 1) / 2

    def _widen(self) -> None:
        """Reckon, for batches twice as large as before, what depends on the size alone: `b`, the
        growth of a step by step, and the size less one and itself as floats. Python takes three
        times as long for a product of a float and an int as for one of two floats."""
        for batch in range(len(self._by_batch), 2 * len(self._heap) + 8):
            others = batch - 1.0
            self._by_batch.append(
                (
                    self._decode_s * (1.0 + self._growth * others),
                    self._attention * others,
                    others,
                    float(batch),
                )
            )

    def _cut(self, now: float) -> None:
        """End the present run of decode steps at the first step boundary not before `now`."""
        base, slope, others, batch = self._by_batch[len(self._heap)]
        base += self._attention * self._context * others / batch
        elapsed = now - self._clock
        if slope:
            lead = base - slope / 2
            steps = (sqrt(lead * lead + 2 * slope * elapsed) - lead) / slope
        else:
            steps = elapsed / base
        whole = ceil(steps - 1e-9)
        if whole > self._phase_steps:
            whole = self._phase_steps
        self._phase_steps = whole
        # `_decode_time(whole)`
        number = float(whole)
        ends = self._clock + (number * base + slope * number * (number - 1.0) / 2.0)
        self.next_at = ends if ends > now else now

    # -- memory --------------------------------------------------------------------------------

    def _may_begin(self, beside: int = 0) -> bool:
        """Whether the first waiting prompt may start: a free slot, and memory for its tokens."""
        running = len(self._heap) + beside
        if running >= self._slots:
            return False
        if not running:
            return True
        job = self.waiting[0]
        total = job.input_tokens + job.generated + self._reserve
        if total <= self._limit - self._used - self.cached_total:
            return True
        return self._make_room(total - self._shared(job), keep=job.prefix)

    def _within_memory(self, steps: int) -> int:
        """Steps that fit into the KV memory; makes room by eviction, then by preemption."""
        while len(self._heap) > 1:
            batch = len(self._heap)
            free = self._limit - self._used - self.cached_total
            if free < batch * steps:
                self._evict(batch * steps - free)
                free = self._limit - self._used - self.cached_total
            if free >= batch:
                return min(steps, free // batch)
            self._preempt()
            steps = self._heap[0][0] - self._step
        return steps

    def _preempt(self) -> None:
        """Take the latest sequence off and compute it again later, as vLLM does."""
        latest = max(self._heap, key=lambda entry: entry[1])
        self._heap.remove(latest)
        heapify(self._heap)
        job = latest[2]
        grown = self._step - job.started_step
        self._context -= job.input_tokens + job.generated + grown
        self._release(job, grown)
        job.generated += grown
        if self._head_left:
            self.waiting.insert(1, job)
        else:
            self.waiting.appendleft(job)
        self.preemptions += 1
