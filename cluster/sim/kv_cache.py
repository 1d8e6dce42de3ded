"""How many KV blocks are left, and which prompts are cached already? One rank's block pool.

As in vLLM: a block is private to a sequence, or stands for a prefix (by hash) and is shared by all
sequences that have it; a shared block that nobody uses stays until its room is needed, the longest
unused first, of one sequence the last block first. A trace's hash may stand for several blocks.

Invariants: 0 <= used <= capacity; used + idle <= capacity; what is taken is given back exactly.
"""

from __future__ import annotations

from collections.abc import Sequence


class KvCache:
    """`capacity` blocks. `used`: of sequences; `idle`: cached and evictable."""

    __slots__ = ("_idle", "_references", "capacity", "idle", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.idle = 0
        self._references: dict[int, int] = {}
        self._idle: dict[int, int] = {}  # hash → blocks, longest unused first

    @property
    def available(self) -> int:
        """Blocks that can be taken, cached ones evicted."""
        return self.capacity - self.used

    def take(self, blocks: int) -> None:
        """Take private blocks; the caller has looked at `available`."""
        self.used += blocks
        self._evict()

    def give(self, blocks: int) -> None:
        """Give private blocks back."""
        self.used -= blocks

    def hits(self, hashes: Sequence[int]) -> int:
        """How many leading hashes are cached."""
        references, idle = self._references, self._idle
        for count, name in enumerate(hashes):
            if name not in references and name not in idle:
                return count
        return len(hashes)

    def blocks_woken(self, hashes: Sequence[int]) -> int:
        """Blocks that `hold` would move from idle to used."""
        return sum(self._idle.get(name, 0) for name in hashes)

    def hold(self, hashes: Sequence[int]) -> None:
        """Use cached hashes (all of them are cached)."""
        references = self._references
        for name in hashes:
            if name in references:
                references[name] += 1
            else:
                blocks = self._idle.pop(name)
                self.idle -= blocks
                self.used += blocks
                references[name] = 1

    def share(self, hashes: Sequence[int]) -> tuple[int, ...]:
        """Make private blocks known under their hashes; those known already stay private.

        Returns the hashes that are shared now: their blocks are no longer the caller's own.
        """
        fresh = tuple(
            name for name in hashes if name not in self._references and name not in self._idle
        )
        for name in fresh:
            self._references[name] = 1
        return fresh

    def drop(self, hashes: Sequence[int], *, blocks: int) -> None:
        """Stop using hashes of `blocks` blocks each; the last one is evicted first."""
        references = self._references
        for name in reversed(hashes):
            left = references[name] - 1
            if left:
                references[name] = left
            else:
                del references[name]
                self._idle[name] = blocks
                self.idle += blocks
                self.used -= blocks

    def _evict(self) -> None:
        while self.used + self.idle > self.capacity:
            name = next(iter(self._idle))
            self.idle -= self._idle.pop(name)
