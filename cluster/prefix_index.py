"""On which replica does a prompt find most of its beginning computed? What was sent where, lately.

A prompt is a chain of whole blocks, each named by a hash of itself and all before it, as engines
name the blocks of their prefix caches. For every replica the blocks of prompts that went there are
kept, those used longest ago are forgotten first, as many as its KV cache holds: what the engine
does, seen from outside. Nobody has to report anything; where the guess is wrong, a prompt is
computed that would have been anyway.

No clock. Invariant: no more than `most_blocks` are kept of a replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

BLOCK_TOKENS = 64


def block_chain(tokens: Sequence[int], *, block_tokens: int = BLOCK_TOKENS) -> tuple[int, ...]:
    """Names of the whole blocks a prompt begins with."""
    chain: list[int] = []
    before = 0
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = hash((before, *tokens[end - block_tokens : end]))
        chain.append(before)
    return tuple(chain)


class PrefixIndex:
    """What the replicas of a pool hold, by name."""

    def __init__(self, *, most_blocks: int) -> None:
        self._most = most_blocks
        self._held: dict[str, OrderedDict[int, None]] = {}

    def shares(self, chain: Sequence[int]) -> Mapping[str, float]:
        """The share of the chain's blocks that each replica has, in (0, 1]; others have none."""
        found: dict[str, float] = {}
        for name, held in self._held.items():
            count = 0
            for block in chain:
                if block not in held:
                    break
                count += 1
            if count:
                found[name] = count / len(chain)
        return found

    def note(self, chain: Sequence[int], replica_id: str) -> None:
        """A prompt of this chain goes to this replica."""
        held = self._held.setdefault(replica_id, OrderedDict())
        for block in reversed(chain):  # the last one is forgotten first, as in an engine
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._most:
            held.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Forget all other replicas."""
        for name in self._held.keys() - set(replicas):
            del self._held[name]
