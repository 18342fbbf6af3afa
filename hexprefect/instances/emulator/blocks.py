"""KV memory in blocks, with a prefix cache of hashed blocks that is emptied least recent first.

A block holds 16 tokens. A full block of a prompt is known by the hash of all text up to its end,
so that two prompts share blocks exactly as far as they begin alike. A block that nobody uses stays
in the cache until its memory is needed. Blocks of generated tokens are not shared.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

BLOCK_TOKENS: Final = 16
BlockHash = int


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """The KV blocks of one instance."""

    def __init__(self, total: int, *, prefix_caching: bool = True) -> None:
        self.total = total
        self._prefix_caching = prefix_caching
        self._shared: dict[BlockHash, int] = {}
        """Hashed blocks in use, with the number of their users."""
        self._idle: OrderedDict[BlockHash, None] = OrderedDict()
        """Hashed blocks that nobody uses, least recently used first."""
        self._private = 0
        """Blocks in use that have no hash."""

    @property
    def used(self) -> int:
        """Blocks in use; cached ones that nobody uses are free."""
        return len(self._shared) + self._private

    @property
    def available(self) -> int:
        """Blocks that can be had, by evicting cached ones if need be."""
        return self.total - self.used

    def cached_blocks(self, hashes: Sequence[BlockHash]) -> int:
        """How many leading blocks of a prompt are held."""
        if not self._prefix_caching:
            return 0
        for count, block in enumerate(hashes):
            if block not in self._shared and block not in self._idle:
                return count
        return len(hashes)

    def needed_for(self, hashes: Sequence[BlockHash], blocks: int) -> int:
        """How much `available` shrinks when a prompt of `blocks` blocks takes its place."""
        in_use = sum(1 for block in self._known(hashes) if block in self._shared)
        return blocks - in_use

    def take_prompt(self, hashes: Sequence[BlockHash], blocks: int) -> None:
        """Take a prompt's blocks: those with a hash are shared, the rest are private.

        The caller has checked that they fit.
        """
        known = self._known(hashes)
        fresh: list[BlockHash] = []
        for block in known:
            if block in self._shared:
                self._shared[block] += 1
            elif block in self._idle:
                del self._idle[block]
                self._shared[block] = 1
            else:
                fresh.append(block)
        self._make_room(blocks - len(known) + len(fresh))
        for block in fresh:
            self._shared[block] = 1
        self._private += blocks - len(known)

    def take(self, blocks: int) -> None:
        """Take private blocks. The caller has checked that they fit."""
        self._make_room(blocks)
        self._private += blocks

    def give_back(self, hashes: Sequence[BlockHash], blocks: int) -> None:
        """Free a sequence's blocks: `blocks` altogether, its prompt's hashed ones among them.

        The prompt's end is given back first: what few share is evicted before what many do.
        """
        known = self._known(hashes)
        for block in reversed(known):
            users = self._shared[block] - 1
            if users:
                self._shared[block] = users
            else:
                del self._shared[block]
                self._idle[block] = None
        self._private -= blocks - len(known)

    def _known(self, hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
        return hashes if self._prefix_caching else ()

    def _make_room(self, blocks: int) -> None:
        spare = self.total - self.used - len(self._idle)
        while spare < blocks and self._idle:
            self._idle.popitem(last=False)
            spare += 1
        assert spare >= blocks, "blocks were taken that were not available"
