"""What an engine is given: its options, and the requests it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hexprefect.errors import HexprefectError

Prefill = Literal["chunked", "first"]
Prefix = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an instance's engine is set up; the defaults are vLLM's."""

    prefill: Prefill = "chunked"
    """`chunked`: prompts share each step with the running sequences. `first`: they go before."""
    step_tokens: int = 2048
    """Token budget of a step (`max_num_batched_tokens`)."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    """`priority`: prompts that wait in the engine are ordered by the priority sent with them."""
    slots: int = 256
    """Sequences that may run at once (`max_num_seqs`)."""
    prefix_cache: bool = True
    attention_s_per_token: float = 7.8e-08
    """Seconds a step takes longer for each context token of a further sequence."""
    watermark: float = 0.01
    """Share of the KV memory that is kept free when a prompt is let in beside others."""


class EngineJob:
    """A request as the engine sees it. The simulation extends it with what the policy knows."""

    __slots__ = ("generated", "input_tokens", "output_tokens", "pinned", "prefix", "priority",
                 "private_tokens", "started_step", "uncached_tokens")  # fmt: skip

    def __init__(self, input_tokens: int, output_tokens: int, prefix: Prefix = ()) -> None:
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.prefix = prefix
        self.priority = 0.0
        """Smaller goes first, under `scheduling="priority"`; ties by arrival."""
        self.generated = 0
        """Tokens generated before the last preemption; they are prefilled again after it."""
        self.uncached_tokens = 0
        self.private_tokens = 0
        self.started_step = 0
        self.pinned: Prefix = ()


class PromptTooLong(HexprefectError):
    """A request that no instance can hold, even alone."""
