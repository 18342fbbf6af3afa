"""How long a request takes: `t_comp(r, m) = c + a · uncached input + b(batch) · output`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    """What predicts the duration of a request on an instance (`c, a, b` of the design)."""

    name: str
    fixed_s: float
    """`c`: seconds every request costs, whatever its length."""
    input_s_per_token: float
    """`a`: seconds of prefill for each input token that is not cached."""
    output_s_per_token: float
    """`b`: seconds of decoding for each output token, alone on the instance."""
    batch_growth: float = 0.0
    """Relative growth of `b` for each further sequence in the batch."""
    kv_tokens: int | None = None
    """Tokens that fit into the instance's KV memory; `None` when it is not a limit."""

    def decode_s_per_token(self, batch: float = 1.0) -> float:
        """`b(batch)`: seconds for one output token of each of `batch` sequences."""
        return self.output_s_per_token * (1.0 + self.batch_growth * max(0.0, batch - 1.0))


@dataclass(frozen=True, slots=True)
class RequestSize:
    """How much work a request is, as far as it is known before it runs (tokens)."""

    input_tokens: int
    output_tokens: float
    """Predicted per stage and database from finished requests; never from the answer itself."""
    prefix: tuple[tuple[str, int], ...] = ()
    """Shared leading segments `(key, tokens)`, outermost first."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV memory to reserve for it."""
        return self.input_tokens + round(self.output_tokens)


def completion_seconds(
    size: RequestSize, profile: Profile, *, cached_tokens: int = 0, batch: float = 1.0
) -> float:
    """`t_comp(r, m)` in seconds.

    Args:
        size: the request.
        profile: of the instance it would run on.
        cached_tokens: input tokens that the instance holds in its prefix cache already.
        batch: sequences decoded together, itself included.
    """
    uncached = max(0, size.input_tokens - cached_tokens)
    return (
        profile.fixed_s
        + profile.input_s_per_token * uncached
        + profile.decode_s_per_token(batch) * size.output_tokens
    )


def mean_completion_seconds(size: RequestSize, profiles: Sequence[Profile]) -> float:
    """`t̄`: the mean of `t_comp` over the instances; 0 when there are none."""
    if not profiles:
        return 0.0
    return sum(completion_seconds(size, profile) for profile in profiles) / len(profiles)


def cached_prefix_tokens(prefix: Iterable[tuple[str, int]], held: frozenset[str]) -> int:
    """Input tokens covered by an instance's cache: leading segments only, up to the first miss."""
    total = 0
    for key, tokens in prefix:
        if key not in held:
            break
        total += tokens
    return total


def hold_prefix(
    held: Sequence[tuple[str, int]],
    prefix: Sequence[tuple[str, int]],
    *,
    capacity_tokens: int | None,
    most: int = 64,
) -> tuple[tuple[str, int], ...]:
    """The prefixes an instance holds after serving one more prompt, least recently used first.

    Args:
        held: `(key, tokens)` it held before.
        prefix: the served prompt's segments, outermost first.
        capacity_tokens: tokens its cache can hold, or `None` when unknown.
        most: entries to remember at most.
    """
    fresh = dict(prefix)
    kept = [(key, tokens) for key, tokens in held if key not in fresh]
    # An outer segment outlives what builds on it, so it is the most recently used.
    kept.extend(reversed(tuple(fresh.items())))
    kept = kept[-most:]
    if capacity_tokens is not None:
        total = sum(tokens for _, tokens in kept)
        while kept and total > capacity_tokens:
            total -= kept.pop(0)[1]
    return tuple(kept)
