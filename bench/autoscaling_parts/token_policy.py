"""What would a reactive policy on tokens do? AIBrix's rule, told our measure of load.

AIBrix's APA (`pkg/controller/podautoscaler/algorithm/apa.go`): replicas times use over target, if
that is off by more than a tenth; at most twice as many, at least half; down only when 300 s have
gone without a change up. Looked at every 10 s, its metric a mean over 60 s. The use is predicted
tokens in flight and queued per ready replica; the target 0.8 of what one holds at capacity.
"""

from __future__ import annotations

import math
from collections import deque

from bench.autoscaling_parts.world import Sizer, Sustained
from cluster.sim.driver import PoolFacts

EVERY_S, MEAN_S, COOL_S = 10.0, 60.0, 300.0
TOLERANCE, RATE, TARGET = 0.1, 2.0, 0.8


class TokenPolicy(Sizer):
    """`replica`: what one carries."""

    def __init__(self, replica: Sustained) -> None:
        self._expected = TARGET * replica.in_flight_tokens
        self._seen: deque[tuple[float, float]] = deque()
        self._next_s = 0.0
        self._changed_s = 0.0

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        self._seen.append((now_s, pool.traffic.in_flight_tokens + pool.traffic.queued_tokens))
        while self._seen[0][0] <= now_s - MEAN_S:
            self._seen.popleft()
        if now_s < self._next_s or not pool.ready:
            return pool.target
        self._next_s = now_s + EVERY_S
        tokens = sum(number for _, number in self._seen) / len(self._seen)
        over = tokens / pool.ready / self._expected
        wanted = math.ceil(pool.ready * over)
        if over > 1.0 + TOLERANCE:
            wanted = max(min(wanted, math.ceil(RATE * pool.ready)), pool.target)
        elif over < 1.0 - TOLERANCE and now_s - self._changed_s >= COOL_S:
            wanted = min(max(wanted, math.floor(pool.ready / RATE)), pool.target)
        else:
            return pool.target
        if wanted != pool.target:
            self._changed_s = now_s
        return wanted
