"""What the controller sees and what it decides: the two ends of `controller.step`.

A snapshot is everything a decision may depend on, the clock included; every observation carries
the time it was made, so that stale means unknown and never zero. Tokens are *predicted* tokens
((prompt + output / 2) * 1.2, see `cluster.routing.predicted_tokens`), work is in predicted
engine-seconds of one replica of the pool (`cluster.engine_work`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from autoscaler.reasons import REASONS, Action, Reason
from cluster.pool_ledger import Report


class Tier(IntEnum):
    """Degradation tiers; each includes the ones before it."""

    NORMAL = 0
    NO_LOGPROBS = 1
    SHORT_OUTPUT = 2
    LIGHT_MODEL = 3
    SHED = 4


@dataclass(frozen=True, kw_only=True)
class ReplicaObservation:
    """One engine replica, as it last reported. `observed_s`: the report's time, NaN if none came.

    `running`, `waiting`: sequences in the engine's batch, and accepted but not started.
    `kv_usage`: fraction of KV blocks in use. `steps`: of the engine since its start; they advance
    while it works. `owed_s`: how long the gateways have waited for any token of it, be it of a
    request or of a canary; 0 while nothing is owed. `in_flight`: requests gateways have on it.
    `prompt_tokens`, `output_tokens`: of prompts that its engine has computed and of answers it has
    made, since its start; 0 where nobody counts.
    `host_bytes`, `device_bytes`: memory of all its processes, NaN where nobody has looked.
    `device_fault`: what its node says is wrong with one of its devices, empty if nothing.
    """

    replica_id: str
    observed_s: float
    running: int
    waiting: int
    kv_usage: float
    steps: int = 0
    owed_s: float = 0.0
    in_flight: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    host_bytes: float = math.nan
    device_bytes: float = math.nan
    device_fault: str = ""


def observed(report: Report) -> ReplicaObservation:
    """A replica's report as the controller sees it."""
    return ReplicaObservation(
        replica_id=report.replica_id,
        observed_s=report.sent_s,
        running=report.running,
        waiting=report.waiting,
        kv_usage=report.kv_usage,
        prompt_tokens=report.prompt_tokens,
        output_tokens=report.output_tokens,
    )


@dataclass(frozen=True, kw_only=True)
class StartingReplica:
    """A replica that Serve starts and that does not answer yet. `since_s`: when it was begun."""

    replica_id: str
    since_s: float


@dataclass(frozen=True, kw_only=True)
class PoolObservation:
    """One pool.

    `target` is what Serve was last asked for and acknowledged, `ready` what answers, `pending`
    what has been asked for and does not answer yet. `starting`: those of them that Serve has
    begun. `unmet`: the placement that no node can give them, in words; empty if there is none.
    `start_failure`: why the last start failed, in words; empty if none did. `moving`: to which
    other layout it is on its way, in words; then sizes count replicas of the old one. `deploying`:
    Serve is at the first deployment, of which it gives up itself if nothing comes up.
    """

    pool: str
    observed_s: float
    target: int
    ready: int
    pending: int
    replicas: tuple[ReplicaObservation, ...] = ()
    starting: tuple[StartingReplica, ...] = ()
    unmet: str = ""
    start_failure: str = ""
    moving: str = ""
    deploying: bool = False


@dataclass(frozen=True, kw_only=True)
class LoadObservation:
    """The gateways' view of the traffic of one pool, summed over gateway replicas.

    `arrival_tokens_per_s`: predicted tokens of requests that arrived in the last window, shed
    ones included. `in_flight_tokens`: predicted tokens dispatched and not finished.
    `queued_tokens`, `queued_requests`: waiting in the gateway. `oldest_wait_s`: of those.
    `arrival_work` (engine-seconds per second: replicas that the arrivals keep busy),
    `in_flight_work`, `queued_work` (engine-seconds): the same requests' work, whole ones'.
    """

    pool: str
    observed_s: float
    arrival_tokens_per_s: float
    in_flight_tokens: float
    queued_tokens: float
    queued_requests: int
    oldest_wait_s: float
    arrival_work: float
    in_flight_work: float
    queued_work: float


@dataclass(frozen=True, kw_only=True)
class WorkloadObservation:
    """What a pool's requests are like, smoothed over minutes; NaN where nothing tells.

    `requests`, `streams`: finished ones, and streams among them, that the means rest on.
    `requests_per_s`: that came, refused ones included. `prompt_tokens`, `output_tokens`: means.
    `ttft_s`, `tpot_s`: means of the streams, the wait in line left out. `in_flight`: requests on a
    replica that answers.
    """

    pool: str
    observed_s: float
    requests: float
    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    streams: float
    ttft_s: float
    tpot_s: float
    in_flight: float


@dataclass(frozen=True, kw_only=True)
class ClusterSnapshot:
    """All the controller may look at. A pool without a fresh observation is unknown, not idle."""

    now_s: float
    pools: tuple[PoolObservation, ...]
    loads: tuple[LoadObservation, ...]
    workloads: tuple[WorkloadObservation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision with its reason and the numbers behind it.

    SCALE: `pool` gets `value` replicas. TIER: the service enters tier `value`. HOLD: nothing is
    changed although something would be, and `reason` says why (stale data, cooldown, bound…).
    RESTART: the replica `subject` is ended at once, and Serve starts another. RETIRE: the replica
    `subject` gets no new requests, until it is empty and restarted. REPLAN: a layout is searched
    for what is served now; `value` quantities have drifted from the plan.
    `kind`: of the reason, which `reason` says in words.
    `numbers` are the quantities the reason speaks of, by name, in seconds, tokens, fractions.
    """

    action: Action
    pool: str
    value: int
    kind: Reason
    reason: str
    numbers: tuple[tuple[str, float], ...] = field(default=())
    subject: str = ""

    def __post_init__(self) -> None:
        if self.kind not in REASONS[self.action]:
            raise ValueError(f"'{self.kind}' is no reason to {self.action}")
