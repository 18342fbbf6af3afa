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

import math
from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush

from hexprefect.scheduling import Profile
from hexprefect.simulator.engine_values import EngineJob, EngineOptions, Prefix

_LEAST_CHUNK = 16
"""Prompt tokens of a step at least, also where the running sequences take the whole budget."""

_IDLE, _DECODE, _CHUNK, _PACK, _FIRST = range(5)


class Engine:
    """One instance. Drive it with `submit`, `next_at` and `advance`; time is in seconds."""

    __slots__ = (
        "_attention",
        "_batched",
        "_by_priority",
        "_cache",
        "_clock",
        "_context",
        "_decode_s",
        "_first",
        "_fixed_s",
        "_growth",
        "_head_left",
        "_heap",
        "_input_s",
        "_phase",
        "_phase_steps",
        "_reserve",
        "_sequence",
        "_slots",
        "_step",
        "_step_tokens",
        "_used",
        "cached_total",
        "kv_tokens",
        "next_at",
        "options",
        "preemptions",
        "profile",
        "waiting",
    )  # fmt: skip

    def __init__(self, profile: Profile, options: EngineOptions) -> None:
        self.profile = profile
        self.options = options
        self._fixed_s = profile.fixed_s
        self._input_s = profile.input_s_per_token
        self._decode_s = profile.output_s_per_token
        self._growth = profile.batch_growth
        self._attention = options.attention_s_per_token
        self._by_priority = options.scheduling == "priority"
        self._first = options.prefill == "first"
        self.kv_tokens = profile.kv_tokens
        self._reserve = int(options.watermark * (profile.kv_tokens or 0))
        self._slots = options.slots
        self._step_tokens = options.step_tokens
        self._clock = 0.0
        self._step = 0
        """Decode steps done since the beginning, at `_clock`."""
        self._context = 0
        """Context tokens of the decoding sequences, at `_clock`."""
        self._heap: list[tuple[int, int, EngineJob]] = []
        """Decoding sequences by the step at which they end."""
        self._sequence = 0
        self._phase = _IDLE
        self._phase_steps = 0
        self._batched: list[EngineJob] = []
        """Prompts that end with the present phase."""
        self._head_left = 0
        """Tokens of the first waiting prompt not prefilled yet, once it has begun; else 0."""
        self.waiting: deque[EngineJob] = deque()
        self._cache: OrderedDict[str, list[int]] = OrderedDict()
        """Prefix segments held: key → [tokens, sequences that use it], least recent first."""
        self.cached_total = 0
        self._used = 0
        """KV tokens used by sequences alone, without the shared segments."""
        self.next_at = math.inf
        self.preemptions = 0

    # -- state, as a value ---------------------------------------------------------------------

    @property
    def decoding(self) -> int:
        """Sequences that generate at present."""
        return len(self._heap)

    @property
    def used_kv_tokens(self) -> int:
        """KV tokens in use, shared segments counted once."""
        return self._used + self.cached_total

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits here."""
        return self._phase == _IDLE

    # -- events --------------------------------------------------------------------------------

    def submit(self, job: EngineJob, now: float) -> None:
        """Take a request at `now`; it joins at the next step boundary."""
        waiting = self.waiting
        if self._by_priority and waiting and job.priority < waiting[-1].priority:
            place = len(waiting)
            first = 1 if self._head_left else 0
            while place > first and waiting[place - 1].priority > job.priority:
                place -= 1
            waiting.insert(place, job)
        else:
            waiting.append(job)
        phase = self._phase
        if phase == _IDLE:
            self._clock = now
            self._plan()
        elif phase == _DECODE and waiting[0] is job and self._may_begin():
            self._cut(now)

    def advance(self) -> list[EngineJob]:
        """Do what is due at `next_at` and plan the next phase; returns the finished requests."""
        phase = self._phase
        steps = self._phase_steps
        self._clock = self.next_at
        finished: list[EngineJob] = []
        heap = self._heap
        if steps:
            self._step = step = self._step + steps
            grown = steps * len(heap)
            self._context += grown
            self._used += grown
            while heap and heap[0][0] <= step:
                job = heappop(heap)[2]
                self._release(job)
                finished.append(job)
        if self._batched:
            step = self._step
            for job in self._batched:
                job.started_step = step
                self._context += job.input_tokens + job.generated
                remaining = job.output_tokens - job.generated
                if remaining > 0:
                    self._sequence += 1
                    heappush(heap, (step + remaining, self._sequence, job))
                else:
                    self._release(job)
                    finished.append(job)
            self._batched = []
        if phase != _IDLE:
            self._plan()
        return finished

    # -- planning ------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Choose what the engine does until its next event."""
        if self.waiting and (self._head_left or self._may_begin()):
            if self._first:
                self._plan_first()
            else:
                self._plan_chunked()
            return
        heap = self._heap
        if not heap:
            self._phase = _IDLE
            self._phase_steps = 0
            self.next_at = math.inf
            self._context = 0
            return
        steps = heap[0][0] - self._step
        if self.kv_tokens is not None and self._free() < steps * len(heap):
            steps = self._within_memory(steps)
        self._phase = _DECODE
        self._phase_steps = steps
        self.next_at = self._clock + self._decode_time(steps)

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
        if not self._head_left:
            job = waiting[0]
            self._begin(job)
            self._head_left = job.uncached_tokens
        most = heap[0][0] - self._step if heap else 0
        if heap and self.kv_tokens is not None and self._free() < most * len(heap):
            most = self._within_memory(most)
            most = min(most, heap[0][0] - self._step) if heap else 0
        room = self._step_tokens - len(heap)
        if room < _LEAST_CHUNK:
            room = _LEAST_CHUNK
        if self._head_left > room:
            steps = (self._head_left - 1) // room
            if heap and steps > most:
                steps = most
            tokens = steps * room
            self._head_left -= tokens
            self._phase = _CHUNK
            self._phase_steps = steps
            self.next_at = self._clock + self._input_s * tokens
            if heap:
                self.next_at += self._decode_time(steps)
            return
        left = room - self._head_left
        tokens = self._head_left
        batched = [waiting.popleft()]
        self._head_left = 0
        while left > 0 and waiting and self._may_begin(len(batched)):
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
        self.next_at = self._clock + self._input_s * tokens + self._fixed_s * len(batched)
        if heap:
            self.next_at += self._decode_time(1)

    def _decode_time(self, steps: int) -> float:
        batch = len(self._heap)
        others = batch - 1
        if not others:
            return steps * self._decode_s
        base = self._decode_s * (1.0 + self._growth * others)
        attention = self._attention
        if attention:
            base += attention * self._context * others / batch
            return steps * base + attention * others * steps * (steps - 1) / 2
        return steps * base

    def _cut(self, now: float) -> None:
        """End the present run of decode steps at the first step boundary not before `now`."""
        batch = len(self._heap)
        others = batch - 1
        base = self._decode_s * (1.0 + self._growth * others)
        base += self._attention * self._context * others / batch
        slope = self._attention * others
        elapsed = now - self._clock
        if slope:
            lead = base - slope / 2
            steps = (math.sqrt(lead * lead + 2 * slope * elapsed) - lead) / slope
        else:
            steps = elapsed / base
        whole = min(self._phase_steps, math.ceil(steps - 1e-9))
        self._phase_steps = whole
        self.next_at = max(now, self._clock + self._decode_time(whole))

    # -- memory --------------------------------------------------------------------------------

    def _may_begin(self, beside: int = 0) -> bool:
        """Whether the first waiting prompt may start: a free slot, and memory for its tokens."""
        running = len(self._heap) + beside
        if running >= self._slots:
            return False
        if self.kv_tokens is None or not running:
            return True
        job = self.waiting[0]
        free = self.kv_tokens - self._used - self.cached_total
        if job.input_tokens + job.generated + self._reserve <= free:
            return True
        needed = job.input_tokens + job.generated - self._shared(job)
        needed += self._reserve
        if needed > free:
            self._evict(needed - free, keep=job.prefix)
            free = self.kv_tokens - self._used - self.cached_total
        return needed <= free

    def _free(self) -> int:
        assert self.kv_tokens is not None
        return self.kv_tokens - self._used - self.cached_total

    def _shared(self, job: EngineJob) -> int:
        if not self.options.prefix_cache:
            return 0
        shared = 0
        for key, tokens in job.prefix:
            if key not in self._cache:
                break
            shared += tokens
        return shared

    def _begin(self, job: EngineJob) -> None:
        """Take memory for a prompt, and find how much of it is cached."""
        total = job.input_tokens + job.generated
        if not self.options.prefix_cache or not job.prefix:
            job.uncached_tokens = total
            job.private_tokens = total
            self._used += total
            return
        cache = self._cache
        hit = shared = 0
        missed = False
        for key, tokens in job.prefix:
            entry = cache.get(key)
            if entry is None:
                missed = True
                cache[key] = [tokens, 1]
                self.cached_total += tokens
            else:
                entry[1] += 1
                cache.move_to_end(key)
                if not missed:
                    hit += tokens
            shared += tokens
        job.pinned = job.prefix
        # The last token is always computed: its logits choose the first one of the answer.
        job.uncached_tokens = max(1, total - hit)
        job.private_tokens = total - shared
        self._used += total - shared
        if self.kv_tokens is not None and self._used + self.cached_total > self.kv_tokens:
            self._evict(self._used + self.cached_total - self.kv_tokens)

    def _release(self, job: EngineJob) -> None:
        """Give back what a finished or preempted sequence held."""
        grown = self._step - job.started_step
        self._used -= job.private_tokens + grown
        self._context -= job.input_tokens + job.generated + grown
        for key, _ in job.pinned:
            self._cache[key][1] -= 1
        job.pinned = ()

    def _evict(self, tokens: int, keep: Prefix = ()) -> None:
        """Drop unused prefix segments, least recently used first, until `tokens` are free."""
        kept = {key for key, _ in keep}
        for key in [key for key, entry in self._cache.items() if not entry[1] and key not in kept]:
            if tokens <= 0:
                return
            freed = self._cache.pop(key)[0]
            self.cached_total -= freed
            tokens -= freed

    def _within_memory(self, steps: int) -> int:
        """Steps that fit into the KV memory; makes room by eviction, then by preemption."""
        assert self.kv_tokens is not None
        while len(self._heap) > 1:
            batch = len(self._heap)
            free = self.kv_tokens - self._used - self.cached_total
            if free < batch * steps:
                self._evict(batch * steps - free)
                free = self.kv_tokens - self._used - self.cached_total
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
        self._release(job)
        job.generated += self._step - job.started_step
        if self._head_left:
            self.waiting.insert(1, job)
        else:
            self.waiting.appendleft(job)
        self.preemptions += 1
