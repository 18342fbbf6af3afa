"""Held prefixes: what an instance is believed to have cached, from what it has served.

The rules are those of `cached_prefix_tokens` and `hold_prefix` of `hexprefect.scheduling`, which a
test holds this to; it changes in place, because a simulated instance remembers a prompt after each
request.
"""

from __future__ import annotations

from collections import OrderedDict

from hexprefect.simulator.engine_values import Prefix


class HeldPrefixes:
    """The segments that one instance holds.

    Args:
        capacity_tokens: that its cache can hold, or `None` when unknown.
        most: segments to remember at most.
    """

    __slots__ = ("_capacity", "_held", "_most", "_total", "overflowed")

    def __init__(self, *, capacity_tokens: int | None, most: int) -> None:
        self._capacity = capacity_tokens
        self._most = most
        self._held: OrderedDict[str, int] = OrderedDict()
        """Key → tokens, least recently used first."""
        self._total = 0
        self.overflowed = False
        """Whether some segment was ever forgotten for another. Until then the order of use does
        not matter, and a prompt whose segments are all held changes nothing."""

    @property
    def held(self) -> Prefix:
        """`(key, tokens)`, least recently used first."""
        return tuple(self._held.items())

    def cached_tokens(self, prefix: Prefix) -> int:
        """Input tokens covered: leading segments only, up to the first that is not held."""
        held = self._held
        total = 0
        for key, tokens in prefix:
            if key not in held:
                break
            total += tokens
        return total

    def hold(self, prefix: Prefix) -> bool:
        """Remember that a prompt with these segments was served; whether what is held may differ
        afterwards."""
        held = self._held
        fresh = dict(prefix) if len(prefix) > 1 else prefix
        changed = False
        # An outer segment outlives what builds on it, so it is the most recently used.
        for key, tokens in reversed(fresh.items() if isinstance(fresh, dict) else fresh):
            before = held.get(key)
            if before is None:
                held[key] = tokens
                self._total += tokens
                changed = True
            else:
                held.move_to_end(key)
                if before != tokens:
                    held[key] = tokens
                    self._total += tokens - before
        capacity = self._capacity
        while len(held) > self._most or (capacity is not None and held and self._total > capacity):
            self._total -= held.popitem(last=False)[1]
            self.overflowed = changed = True
        return changed
