"""vLLM's scheduler as an event model: no clock, no I/O, exact at every step boundary.

Each step has a token budget. Running sequences go first, one token each; what is left goes to
prompts, in chunks. A prompt is admitted when a slot and the blocks for all of it are free; the
first one that does not fit holds up those behind it. When running sequences run out of blocks, the
one with the largest priority value, then the latest arrival, is preempted and computed again.

Steps in which nothing but decoding happens are taken many at a time, so that an event costs the
same for one token as for a thousand. A step with `k` sequences of `C` context tokens together takes
`b·(1 + growth·(k−1)) + attention·C·(k−1)/k` for the tokens, `a` for each prompt token and `c` for
each prompt that ends in it: a request that is alone takes exactly `c + a·input + b·output`.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hexprefect.instances.emulator.blocks import (
    BLOCK_TOKENS,
    BlockHash,
    BlockPool,
    blocks_for,
)
from hexprefect.scheduling.cost import Profile

SchedulingPolicy = Literal["priority", "fcfs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How the engine is set up; names and defaults are vLLM's.

    Args:
        max_num_seqs: sequences that run at once.
        max_num_batched_tokens: token budget of a step.
        scheduling_policy: `priority` serves the lowest value first; `fcfs` ignores it.
        prefix_caching: whether prompts that begin alike share blocks.
        watermark: share of the KV memory that admission leaves free beside running sequences, so
            that they can grow for a while before one must be preempted.
        attention_s_per_context_token: seconds a step takes longer for each context token of a
            further sequence.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    scheduling_policy: SchedulingPolicy = "priority"
    prefix_caching: bool = True
    watermark: float = 0.01
    attention_s_per_context_token: float = 7.8e-08


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. Times are emulated seconds."""

    prompt_tokens: int
    output_tokens: int
    """Tokens it will generate, at least 1."""
    priority: int = 0
    block_hashes: tuple[BlockHash, ...] = ()
    """Of the prompt's full blocks."""
    arrived_at: float = 0.0
    arrival: int = 0
    """Order of arrival; set by the engine."""
    generated: int = 0
    computed: int = 0
    """Tokens whose KV is in memory."""
    blocks: int = 0
    """Blocks it holds."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    first_scheduled_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    preemptions: int = 0
    aborted: bool = False

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.generated

    @property
    def prefilled(self) -> bool:
        """Whether it decodes; a preempted sequence must first compute all its tokens again."""
        return self.computed >= self.tokens

    @property
    def order(self) -> tuple[int, int]:
        """Lower goes first."""
        return (self.priority, self.arrival)


@dataclass(slots=True)
class EngineCounters:
    """What has happened since the start."""

    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(slots=True)
class _Phase:
    """What the engine does until its next event: some decode steps, or one step with prompts."""

    started_at: float
    steps: int
    seconds: Callable[[int], float]
    """Time that the first `n` steps take."""
    decoding: list[Sequence] = field(default_factory=list)
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)

    @property
    def ends_at(self) -> float:
        return self.started_at + self.seconds(self.steps)

    def steps_done(self, now: float) -> int:
        """Whole steps finished at `now`."""
        elapsed = now - self.started_at + 1e-12
        return bisect.bisect_right(range(1, self.steps + 1), elapsed, key=self.seconds)


class Engine:
    """One emulated instance's engine. Drive it with `submit`, `abort`, `next_at` and `advance`."""

    def __init__(self, profile: Profile, *, kv_tokens: int, options: EngineOptions) -> None:
        self.profile = profile
        self.options = options
        self.blocks = BlockPool(
            max(1, kv_tokens // BLOCK_TOKENS), prefix_caching=options.prefix_caching
        )
        self.counters = EngineCounters()
        self.slowdown = 1.0
        """Factor on every step that begins from now on."""
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._phase: _Phase | None = None
        self._arrivals = 0

    @property
    def next_at(self) -> float | None:
        """When the next event happens; None when idle."""
        return None if self._phase is None else self._phase.ends_at

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for one."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return self.blocks.used / self.blocks.total

    def submit(self, sequence: Sequence, now: float) -> None:
        """Take a request; it joins at the next step boundary. `advance(now)` comes first.

        Raises:
            ValueError: it could not run even alone, because the KV memory is too small for it.
        """
        if blocks_for(sequence.prompt_tokens + sequence.output_tokens) > self.blocks.total:
            raise ValueError("the sequence does not fit into the KV memory, even alone")
        sequence.arrived_at = now
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._enqueue(sequence)
        if self._phase is None:
            self._plan(now)
        elif self._waiting[0] is sequence and len(self._running) < self.options.max_num_seqs:
            self._cut(now)

    def abort(self, sequence: Sequence, now: float) -> None:
        """Forget a request: at once if it waits, else at the next step boundary."""
        sequence.aborted = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._cut(now)

    def slow_down(self, factor: float, now: float) -> None:
        """Make every step from the next boundary on take `factor` times as long."""
        self.slowdown = factor
        self._cut(now)

    def advance(self, now: float) -> list[Sequence]:
        """Do all that is due at `now`; returns the sequences that finished, in order."""
        finished: list[Sequence] = []
        while self._phase is not None and (at := self._phase.ends_at) <= now:
            finished.extend(self._complete(self._phase, at))
            self._plan(at)
        return finished

    def generated(self, sequence: Sequence, now: float) -> int:
        """Tokens that `sequence` has generated at `now`."""
        phase = self._phase
        if phase is None or phase.chunks or sequence not in phase.decoding:
            return sequence.generated
        return sequence.generated + phase.steps_done(now)

    # -- one phase -----------------------------------------------------------------------------

    def _plan(self, now: float) -> None:
        """Decide what to do from `now` until the next event."""
        preempted = self._free_blocks_for_decoding()
        decoding = [sequence for sequence in self._running if sequence.prefilled]
        chunks = self._continue_prompts(decoding)
        if not preempted:
            self._admit(now, decoding, chunks)
        decoding = [sequence for sequence in self._running if sequence.prefilled]
        if chunks:
            self._phase = _Phase(now, 1, self._mixed_step(decoding, chunks), decoding, chunks)
        elif decoding:
            steps = min(s.output_tokens - s.generated for s in decoding)
            steps = self._steps_that_fit(decoding, steps)
            self._phase = _Phase(now, steps, self._decode_steps(decoding), decoding)
        else:
            self._phase = None

    def _complete(self, phase: _Phase, at: float) -> list[Sequence]:
        """Account for a phase that has ended; returns what finished."""
        for sequence, tokens in phase.chunks:
            sequence.computed += tokens
        for sequence in phase.decoding:
            self._generate(sequence, phase.steps)
        for sequence, _ in phase.chunks:
            if sequence.prefilled:
                if sequence.first_token_at is None:
                    sequence.first_token_at = at
                    self.counters.prompt_tokens += sequence.prompt_tokens
                self._generate(sequence, 1)
        finished = []
        for sequence in [*phase.decoding, *(sequence for sequence, _ in phase.chunks)]:
            if sequence.aborted or sequence.generated >= sequence.output_tokens:
                self._running.remove(sequence)
                self._give_back(sequence)
                if not sequence.aborted:
                    sequence.finished_at = at
                    finished.append(sequence)
        return finished

    def _cut(self, now: float) -> None:
        """End the present run of decode steps at the first step boundary not before `now`."""
        phase = self._phase
        if phase is not None and not phase.chunks:
            done = phase.steps_done(now)
            on_boundary = done > 0 and phase.started_at + phase.seconds(done) >= now - 1e-12
            phase.steps = min(phase.steps, done if on_boundary else done + 1)

    # -- scheduling ----------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        if self.options.scheduling_policy == "priority":
            bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.order)
        else:
            bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.arrival)

    def _free_blocks_for_decoding(self) -> bool:
        """Preempt until every decoding sequence can take one more token; whether any was."""
        preempted = False
        while True:
            decoding = [sequence for sequence in self._running if sequence.prefilled]
            if self._growth(decoding, 1) <= self.blocks.available:
                return preempted
            self._preempt_one()
            preempted = True

    def _continue_prompts(self, decoding: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Chunks for the prompts that were admitted before and are not computed yet.

        Their blocks were taken at admission, so that only the token budget limits them.
        """
        budget = self.options.max_num_batched_tokens - len(decoding)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self._running:
            tokens = min(sequence.tokens - sequence.computed, budget)
            if tokens > 0:
                chunks.append((sequence, tokens))
                budget -= tokens
        return chunks

    def _admit(
        self, now: float, decoding: list[Sequence], chunks: list[tuple[Sequence, int]]
    ) -> None:
        """Let waiting prompts in, in order, until one does not fit. Adds their first chunks."""
        budget = self.options.max_num_batched_tokens - len(decoding)
        budget -= sum(tokens for _, tokens in chunks)
        reserved = self._growth(decoding, 1)
        while self._waiting and budget > 0 and len(self._running) < self.options.max_num_seqs:
            sequence = self._waiting[0]
            blocks = blocks_for(sequence.tokens + 1)
            needed = self.blocks.needed_for(sequence.block_hashes, blocks)
            kept_free = int(self.options.watermark * self.blocks.total) if self._running else 0
            if needed > self.blocks.available - reserved - kept_free:
                return
            self._waiting.pop(0)
            self._begin(sequence, blocks, now)
            tokens = min(sequence.tokens - sequence.computed, budget)
            chunks.append((sequence, tokens))
            budget -= tokens

    def _begin(self, sequence: Sequence, blocks: int, now: float) -> None:
        held = self.blocks.cached_blocks(sequence.block_hashes)
        # The last token is always computed: its logits choose the next one.
        sequence.computed = min(held * BLOCK_TOKENS, sequence.tokens - 1)
        sequence.computed -= sequence.computed % BLOCK_TOKENS
        self.counters.prefix_queries += sequence.tokens
        self.counters.prefix_hits += sequence.computed
        self.blocks.take_prompt(sequence.block_hashes, blocks)
        sequence.blocks = blocks
        if sequence.first_scheduled_at is None:
            sequence.first_scheduled_at = now
            sequence.cached_tokens = sequence.computed
        self._running.append(sequence)

    def _preempt_one(self) -> None:
        """Take the least urgent running sequence off; it goes back to its place in the queue."""
        if self.options.scheduling_policy == "priority":
            victim = max(self._running, key=lambda sequence: sequence.order)
        else:
            victim = self._running[-1]
        self._running.remove(victim)
        self._give_back(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.counters.preemptions += 1
        self._enqueue(victim)

    # -- memory --------------------------------------------------------------------------------

    def _growth(self, decoding: list[Sequence], steps: int) -> int:
        """Blocks that `steps` more tokens of each sequence need beyond those held."""
        return sum(max(0, blocks_for(s.tokens + steps) - s.blocks) for s in decoding)

    def _steps_that_fit(self, decoding: list[Sequence], steps: int) -> int:
        available = self.blocks.available
        if self._growth(decoding, steps) <= available:
            return steps
        fits = bisect.bisect_right(
            range(1, steps + 1), available, key=lambda n: self._growth(decoding, n)
        )
        return max(1, fits)

    def _generate(self, sequence: Sequence, tokens: int) -> None:
        sequence.generated += tokens
        sequence.computed = sequence.tokens
        self.counters.generation_tokens += tokens
        more = blocks_for(sequence.tokens) - sequence.blocks
        if more > 0:
            self.blocks.take(more)
            sequence.blocks += more

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.give_back(sequence.block_hashes, sequence.blocks)
        sequence.blocks = 0

    # -- time ----------------------------------------------------------------------------------

    def _decode_steps(self, decoding: list[Sequence]) -> Callable[[int], float]:
        """Seconds that the next `n` decode steps take, in closed form: context grows each step."""
        others = len(decoding) - 1
        attention = self.options.attention_s_per_context_token
        context = sum(sequence.tokens for sequence in decoding)
        base = self.profile.decode_s_per_token(len(decoding))
        base += attention * context * others / len(decoding)
        slope = attention * others
        slowdown = self.slowdown

        def seconds(steps: int) -> float:
            return slowdown * (steps * base + slope * steps * (steps - 1) / 2)

        return seconds

    def _mixed_step(
        self, decoding: list[Sequence], chunks: list[tuple[Sequence, int]]
    ) -> Callable[[int], float]:
        """Seconds of one step with prompts in it. A prompt that ends gets its first token too."""
        ending = [s for s, tokens in chunks if s.computed + tokens >= s.tokens]
        seconds = self.slowdown * (
            self.profile.input_s_per_token * sum(tokens for _, tokens in chunks)
            + self.profile.fixed_s * sum(1 for s in ending if s.first_token_at is None)
        )
        if decoding or ending:
            seconds += self._decode_steps([*decoding, *ending])(1)
        return lambda steps: seconds if steps else 0.0
