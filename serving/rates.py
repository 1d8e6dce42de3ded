"""How much may one key ask for? A budget per minute, of requests or of tokens.

A bucket (leaky bucket as a meter): it holds at most a minute's worth and fills evenly. Requests are
taken when they are admitted. Tokens are taken as predicted, and put right when the answer has ended
and what it really used is known; the bucket may then be in debt, which time pays.

No clock: times are arguments, in seconds. Invariants: over any span of t seconds no more than
`per_minute` x (1 + t / 60) is granted and kept; what is given back was taken.
"""

from __future__ import annotations

MINUTE_S = 60.0


class Bucket:
    """What is left of a budget. `per_minute`: its size, and what flows in per minute."""

    __slots__ = ("_at_s", "_level", "per_minute")

    def __init__(self, per_minute: float, *, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = per_minute
        self._at_s = now_s

    def left(self, now_s: float) -> float:
        """What could be taken now; below 0 while in debt."""
        self._fill(now_s)
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until `amount` can be taken: 0 if now, infinite if it never can."""
        if amount > self.per_minute:
            return float("inf")
        missing = amount - self.left(now_s)
        return max(0.0, missing * MINUTE_S / self.per_minute)

    def take(self, amount: float, now_s: float) -> None:
        """Take, whether it is there or not; an amount below 0 was taken before, and not used."""
        self._fill(now_s)
        self._level = min(self.per_minute, self._level - amount)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            flown = (now_s - self._at_s) * self.per_minute / MINUTE_S
            self._level = min(self.per_minute, self._level + flown)
            self._at_s = now_s
