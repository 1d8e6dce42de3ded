"""When is a batch of waiting requests let go? While all replicas are busy: by time or by size.

A request is never held while a replica is idle: the first token waits for no batch. Otherwise those
that come within `wait_s` of the first are placed together, or as soon as `tokens` predicted tokens
are; placing several at once balances them better than one by one, and a VIP among them goes first.

No clock: times are arguments. Invariant: nobody is held longer than `wait_s`.
"""

from __future__ import annotations

import math


class BatchGate:
    """Holds what arrives while every replica is busy. `wait_s` = 0: nothing is ever held."""

    __slots__ = ("_held_tokens", "_since_s", "_tokens", "_wait_s")

    def __init__(self, *, wait_s: float, tokens: float) -> None:
        self._wait_s = wait_s
        self._tokens = tokens
        self._since_s = math.inf
        self._held_tokens = 0.0

    @property
    def due_s(self) -> float:
        """When what is held is let go at the latest; infinite if nothing is held."""
        return self._since_s + self._wait_s

    def hold(self, tokens: float, now_s: float) -> None:
        """A request of `tokens` joins what is held."""
        if self._since_s == math.inf:
            self._since_s = now_s
        self._held_tokens += tokens

    def opens(self, now_s: float, *, idle: bool) -> bool:
        """Whether what is held goes now; `idle`: some replica has nothing to do."""
        if self._since_s == math.inf:
            return False
        return idle or self._held_tokens >= self._tokens or now_s >= self.due_s

    def empty(self) -> None:
        """What was held has gone."""
        self._since_s, self._held_tokens = math.inf, 0.0
