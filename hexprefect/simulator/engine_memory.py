"""The KV memory of an engine: what sequences use, and the prefix segments that are kept."""

from __future__ import annotations

from collections import OrderedDict

from hexprefect.simulator.engine_values import EngineJob, EngineOptions, Prefix

_BOUNDLESS = 1 << 62
"""KV tokens where memory is not a limit: no sum of tokens reaches it."""


class EngineMemory:
    """Counts KV tokens. A segment that several prompts share counts once, and outlives them until
    its room is needed: the least recently used goes first.

    Args:
        kv_tokens: that fit, or `None` where memory is not a limit.
        options: whether prefixes are kept, and the share that is left free for growing answers.
    """

    __slots__ = (
        "_cache",
        "_keeps",
        "_limit",
        "_reserve",
        "_used",
        "cached_total",
        "kv_tokens",
    )

    def __init__(self, kv_tokens: int | None, options: EngineOptions) -> None:
        self.kv_tokens = kv_tokens
        self._limit = _BOUNDLESS if kv_tokens is None else kv_tokens
        self._reserve = int(options.watermark * (kv_tokens or 0))
        self._keeps = options.prefix_cache
        self._cache: OrderedDict[str, list[int]] = OrderedDict()
        """Prefix segments held: key → [tokens, sequences that use it], least recent first."""
        self.cached_total = 0
        self._used = 0
        """KV tokens used by sequences alone, without the shared segments."""

    @property
    def used_kv_tokens(self) -> int:
        """KV tokens in use, shared segments counted once."""
        return self._used + self.cached_total

    def _shared(self, job: EngineJob) -> int:
        """Prompt tokens that are cached."""
        if not self._keeps:
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
        prefix = job.prefix
        if not prefix or not self._keeps:
            job.uncached_tokens = total
            job.private_tokens = total
            self._used += total
            return
        cache = self._cache
        job.pinned = prefix
        if len(prefix) == 1:
            # As below, for the one segment that most prompts share.
            [(key, shared)] = prefix
            entry = cache.get(key)
            if entry is None:
                cache[key] = [shared, 1]
                self.cached_total += shared
                job.uncached_tokens = total
            else:
                entry[1] += 1
                cache.move_to_end(key)
                job.uncached_tokens = total - shared or 1
            job.private_tokens = private = total - shared
            self._used = used = self._used + private
            if used + self.cached_total > self._limit:
                self._evict(used + self.cached_total - self._limit)
            return
        hit = shared = 0
        missed = False
        for key, tokens in prefix:
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
        # The last token is always computed: its logits choose the first one of the answer.
        job.uncached_tokens = total - hit or 1
        job.private_tokens = total - shared
        self._used += total - shared
        excess = self._used + self.cached_total - self._limit
        if excess > 0:
            self._evict(excess)

    def _release(self, job: EngineJob, grown: int) -> None:
        """Give back what a sequence held, and the `grown` tokens that it generated."""
        self._used -= job.private_tokens + grown
        if job.pinned:
            for key, _ in job.pinned:
                self._cache[key][1] -= 1
            job.pinned = ()

    def _make_room(self, needed: int, keep: Prefix) -> bool:
        """Drop what nobody uses until `needed` tokens are free; whether that succeeded."""
        free = self._limit - self._used - self.cached_total
        if needed > free:
            self._evict(needed - free, keep)
            free = self._limit - self._used - self.cached_total
        return needed <= free

    def _evict(self, tokens: int, keep: Prefix = ()) -> None:
        """Drop unused prefix segments, least recently used first, until `tokens` are free."""
        kept = {key for key, _ in keep}
        dropped = []
        for key, (freed, users) in self._cache.items():
            if not users and key not in kept:
                dropped.append(key)
                self.cached_total -= freed
                tokens -= freed
                if tokens <= 0:
                    break
        for key in dropped:
            del self._cache[key]
