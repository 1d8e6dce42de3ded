"""How do queue, replicas and cold starts of one pool move under a token load, second by second?

A small fluid model in virtual time, for trying controllers in milliseconds: predicted tokens flow
like a liquid from a FIFO queue through replicas. It is not a trace simulator: it knows neither
requests nor engine steps.

A replica admits up to C tokens and finishes them at a rate proportional to what it holds,

    rate = in_flight * (capacity_tokens_per_s / C),

so a full replica delivers its capacity, a half-empty one half of it: continuous batching far
from the compute bound, where a sequence's speed does not depend on the batch. By Little's law the
tokens in flight are then arrivals * C / capacity_tokens_per_s at any number of replicas.

Invariants: arrived = finished + in flight + queued; admission never fills a pool beyond
ready * C; the queue is first in, first out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# An exponential never ends, a batch does: less than this in flight is finished.
_LAST_TOKEN = 1.0


@dataclass(frozen=True, kw_only=True)
class FluidSpec:
    """One replica: predicted tokens/s when full, predicted tokens it holds, seconds to start."""

    capacity_tokens_per_s: float
    capacity_in_flight_tokens: float
    cold_start_s: float


@dataclass(frozen=True, kw_only=True)
class FluidPool:
    """A pool at `now_s`.

    `queue`: (arrival time, tokens), oldest first. `starting`: when each pending replica will be
    ready, soonest first.
    """

    spec: FluidSpec
    now_s: float = 0.0
    ready: int = 0
    starting: tuple[float, ...] = ()
    queue: tuple[tuple[float, float], ...] = ()
    in_flight_tokens: float = 0.0
    arrived_tokens: float = 0.0
    finished_tokens: float = 0.0

    @property
    def target(self) -> int:
        """Replicas asked for."""
        return self.ready + len(self.starting)

    @property
    def queued_tokens(self) -> float:
        """Tokens waiting."""
        return math.fsum(tokens for _, tokens in self.queue)

    @property
    def oldest_wait_s(self) -> float:
        """How long the head of the queue has waited, 0 if it is empty."""
        return self.now_s - self.queue[0][0] if self.queue else 0.0


def set_target(pool: FluidPool, replicas: int) -> FluidPool:
    """The pool asked for `replicas`: new ones start cold, surplus ones go, pending ones first.

    A removed replica's tokens stay in flight (it drains); the smaller pool admits nothing until
    they fit again.
    """
    replicas = max(0, replicas)
    missing = replicas - pool.target
    if missing >= 0:
        new = (pool.now_s + pool.spec.cold_start_s,) * missing
        return replace(pool, starting=(*pool.starting, *new))
    kept = max(0, replicas - pool.ready)
    return replace(pool, starting=pool.starting[:kept], ready=min(pool.ready, replicas))


def advance(pool: FluidPool, *, dt_s: float, arrival_tokens_per_s: float) -> FluidPool:
    """The pool `dt_s` later, with a constant arrival rate in between.

    First order in `dt_s`, which should be well below C / capacity_tokens_per_s: what is in flight
    is served, then freed room is filled from the queue.
    """
    now_s = pool.now_s + dt_s
    started = sum(1 for ready_s in pool.starting if ready_s <= now_s)
    ready = pool.ready + started
    spec = pool.spec

    residence_s = spec.capacity_in_flight_tokens / spec.capacity_tokens_per_s
    finished = pool.in_flight_tokens * -math.expm1(-dt_s / residence_s)
    in_flight = pool.in_flight_tokens - finished
    if in_flight < _LAST_TOKEN:
        finished, in_flight = pool.in_flight_tokens, 0.0

    arrived = arrival_tokens_per_s * dt_s
    queue = [*pool.queue, (now_s, arrived)] if arrived > 0.0 else list(pool.queue)
    room = max(0.0, ready * spec.capacity_in_flight_tokens - in_flight)
    taken = 0
    while taken < len(queue) and room > 0.0:
        since_s, tokens = queue[taken]
        admitted = min(room, tokens)
        room -= admitted
        in_flight += admitted
        if admitted < tokens:
            queue[taken] = (since_s, tokens - admitted)
            break
        taken += 1
    return replace(
        pool,
        now_s=now_s,
        ready=ready,
        starting=pool.starting[started:],
        queue=tuple(queue[taken:]),
        in_flight_tokens=in_flight,
        arrived_tokens=pool.arrived_tokens + arrived,
        finished_tokens=pool.finished_tokens + finished,
    )
