"""Which replica gets a request: filter → score → pick, on one page.

The simulator and the live gateway call `pick` with the same kinds of values. Load is counted in
predicted tokens, (prompt + output / 2) * 1.2, because two requests of one kind can differ a
hundredfold in work. What the gateway itself dispatched is known at once (`in_flight_*`); what an
engine reports arrives later, and a report older than `STALE_AFTER_S` says nothing: unknown is
scored neutral, never as idle and never as full.

To add a rule: write a `Scorer` (a number in [0, 1], higher is better) and add a line to `SCORERS`.

Invariants: a replica that is in `avoid` or full is never picked; equal loads are split by `tie`,
so that several gateways do not herd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

STALE_AFTER_S = 5.0
_NEUTRAL = 0.5
_NOTHING: Mapping[str, float] = MappingProxyType({})
# Tokens of load that a token which need not be computed is worth (`bench/prefix_affinity.py`).
CACHED_WORTH = 16.0


def predicted_tokens(*, prompt_tokens: int, output_tokens: float) -> float:
    """Predicted load of a request, in tokens: (prompt + output / 2) * 1.2.

    A sequence holds its prompt and, on average over its life, half of its output; the rest is
    margin. `output_tokens`: what a `cluster.lengths` predictor says.
    """
    return (prompt_tokens + output_tokens / 2) * 1.2


class EngineReport(NamedTuple):
    """What an engine says of itself; `age_s` since it said so."""

    age_s: float
    running: int
    waiting: int
    kv_usage: float


class ReplicaView(NamedTuple):
    """A replica as a router sees it.

    `in_flight_tokens`, `in_flight_requests`: dispatched and not finished, by this gateway and, as
    far as it knows, by others.
    `max_requests`: sequences the engine batches; `max_tokens`: tokens its KV cache holds.
    """

    replica_id: str
    in_flight_tokens: float
    in_flight_requests: float
    max_requests: int
    max_tokens: float
    report: EngineReport | None = None


class RouteRequest(NamedTuple):
    """What is to be placed: predicted tokens, and replicas it must not go to again.

    `cached`: share of the prompt that is in a replica's prefix cache, in (0, 1], by replica.
    """

    tokens: float
    avoid: frozenset[str] = frozenset()
    cached: Mapping[str, float] = _NOTHING


Scorer = Callable[[RouteRequest, ReplicaView], float]


def token_headroom(request: RouteRequest, replica: ReplicaView) -> float:
    """Fraction of the replica's token capacity left after this request."""
    free = 1.0 - (replica.in_flight_tokens + request.tokens) / replica.max_tokens
    return free if free > 0.0 else 0.0


def request_headroom(request: RouteRequest, replica: ReplicaView) -> float:
    """Fraction of the engine's batch slots left after this request."""
    del request
    free = 1.0 - (replica.in_flight_requests + 1) / replica.max_requests
    return free if free > 0.0 else 0.0


def engine_headroom(request: RouteRequest, replica: ReplicaView) -> float:
    """Free KV blocks as the engine reports them, less for sequences it has not started."""
    del request
    report = replica.report
    if report is None or report.age_s > STALE_AFTER_S:
        return _NEUTRAL
    return _clamp(1.0 - report.kv_usage) / (1.0 + report.waiting)


def prefix_affinity(request: RouteRequest, replica: ReplicaView) -> float:
    """What the replica's prefix cache saves, as a fraction of its token capacity.

    Counted like load (`CACHED_WORTH`, and a weight equal to that of `token_headroom`), so that a
    cache draws requests only while its replica is not that much fuller than the others: a prompt
    everybody sends does not take everybody to one replica.
    """
    saved = CACHED_WORTH * request.cached.get(replica.replica_id, 0.0) * request.tokens
    return _clamp(saved / replica.max_tokens)


SCORERS: Mapping[Scorer, float] = {
    token_headroom: 3.0,
    request_headroom: 1.0,
    engine_headroom: 1.0,
    prefix_affinity: 3.0,
}


_WEIGHT = sum(SCORERS.values())


def feasible(request: RouteRequest, replica: ReplicaView) -> bool:
    """Whether the replica may take the request now.

    An idle one always may: a request larger than the predicted capacity must not wait for ever.
    """
    if replica.replica_id in request.avoid:
        return False
    if replica.in_flight_requests == 0:
        return True
    if replica.in_flight_requests >= replica.max_requests:
        return False
    return replica.in_flight_tokens + request.tokens <= replica.max_tokens


def score(request: RouteRequest, replica: ReplicaView) -> float:
    """Weighted mean of all scorers, in [0, 1]."""
    total = 0.0
    for scorer, weight in SCORERS.items():
        total += weight * scorer(request, replica)
    return total / _WEIGHT


def pick(
    request: RouteRequest, replicas: Sequence[ReplicaView], *, tie: float
) -> ReplicaView | None:
    """The feasible replica with the best score, or None if the request has to wait.

    `tie` in [0, 1) chooses among equals (the caller draws it; this function draws nothing).
    """
    candidates = [replica for replica in replicas if feasible(request, replica)]
    if not candidates:
        return None
    if len(candidates) == 1:
        return candidates[0]
    scores = [score(request, replica) for replica in candidates]
    best = max(scores)
    equals = [
        replica for replica, value in zip(candidates, scores, strict=True) if value >= best - 1e-9
    ]
    return equals[int(tie * len(equals))]


def _clamp(value: float) -> float:
    return 0.0 if value < 0.0 else 1.0 if value > 1.0 else value
