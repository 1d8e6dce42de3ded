"""When are waiting requests placed? At once, or while every replica is busy in batches.

Placing several at once balances them better than one by one, and lets a VIP among them go first; it
costs those that a busy replica would have taken at once up to `wait_s`. So nobody is held while a
replica is idle, and no VIP ever is: the first token waits for no batch. Otherwise those that come
within `wait_s` of the first are placed together, or as soon as `tokens` predicted tokens are.

Invariant: nobody is held longer than `wait_s`; who waits longer waits for room.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BatchRules:
    """`wait_s` 0: nothing is ever held."""

    wait_s: float = 0.0
    tokens: float = 4096.0

    def open(self, *, waiting_tokens: float, oldest_wait_s: float, vip: bool, idle: bool) -> bool:
        """Whether those that wait are placed now. `vip`: one of them is; `idle`: a replica is."""
        return idle or vip or waiting_tokens >= self.tokens or oldest_wait_s >= self.wait_s
