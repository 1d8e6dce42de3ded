"""What does the controller tell gateways to show in their metrics? Its account, by the contract.

Sums are kept since the controller began (a restart begins them anew, as Prometheus expects of
counters); the rest is read off the last snapshot and step. What is unknown is absent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from autoscaler.controller import StepResult
from autoscaler.drift import ratios
from autoscaler.need import SCALING_POLICIES
from autoscaler.params import MAIN_POOL, ControllerParams
from autoscaler.snapshot import ClusterSnapshot, Decision, PoolObservation
from serving.control.fault_times import FaultTimes
from serving.control.observe import Heard
from serving.layout.layouts import MoveProgress
from serving.telemetry.metric import Sample

_OUTCOMES = {"done": "done", "rolled back": "rolled_back"}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the account is of: the last tick, and how the controller is.

    `trouble`: what it cannot do, empty if nothing.
    """

    heard: Heard
    params: ControllerParams
    now_s: float
    ticked_s: float
    trouble: str
    last: StepResult | None = None
    snapshot: ClusterSnapshot | None = None


@dataclass(kw_only=True)
class Accounting:
    """Sums since `started_s`. `restarts`, `retired`: carried out, by pool."""

    started_s: float
    restarts: Counter[str] = field(default_factory=Counter)
    retired: Counter[str] = field(default_factory=Counter)
    decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    moves: Counter[str] = field(default_factory=Counter)
    faults: FaultTimes = field(default_factory=FaultTimes)
    _ended: int = 0  # number of the last move that has been counted

    def decided(self, decisions: Iterable[Decision], snapshot: ClusterSnapshot) -> None:
        """At a tick, advice included."""
        decisions = tuple(decisions)
        for each in decisions:
            self.decisions[each.pool, each.action.value, each.kind.value] += 1
        self.faults.note(decisions, snapshot)

    def moved(self, progress: MoveProgress | None) -> None:
        """How far the last move is."""
        if progress is None or progress.number <= self._ended:
            return
        outcome = _OUTCOMES.get(progress.phase)
        if outcome is not None:
            self._ended = progress.number
            self.moves[outcome] += 1

    def samples(self, seen: Seen) -> tuple[Sample, ...]:
        """The account as of now."""
        return (
            *self._sums(seen.params),
            *_service(seen, started_s=self.started_s),
            *_pools(seen),
            *_plan(seen),
            *_memory(seen.heard),
        )

    def _sums(self, params: ControllerParams) -> Iterator[Sample]:
        for labels, count in self.decisions.items():
            yield Sample(name="shardwise_decisions_total", value=count, labels=labels)
        for outcome, count in self.moves.items():
            yield Sample(name="shardwise_moves_total", value=count, labels=(outcome,))
        by_pool: dict[str, Mapping[str, float]] = {
            "shardwise_faults_noticed_total": self.faults.noticed,
            "shardwise_fault_noticed_seconds_total": self.faults.noticed_s,
            "shardwise_faults_restored_total": self.faults.restored,
            "shardwise_fault_restored_seconds_total": self.faults.restored_s,
        }
        for name, values in by_pool.items():
            for pool, value in values.items():
                yield Sample(name=name, value=value, labels=(pool,))
        for each in params.pools:
            for name, counts in (
                ("shardwise_replica_restarts", self.restarts),
                ("shardwise_retired_replicas", self.retired),
            ):
                yield Sample(name=name, value=counts[each.pool], labels=(each.pool,))


def _service(seen: Seen, *, started_s: float) -> Iterator[Sample]:
    kept, last = seen.heard.kept, seen.last
    yield Sample(name="shardwise_controller_start_time_seconds", value=started_s)
    yield Sample(name="shardwise_tick_age_seconds", value=max(0.0, seen.now_s - seen.ticked_s))
    yield Sample(name="shardwise_controller_trouble", value=bool(seen.trouble))
    yield Sample(name="shardwise_unseen_nodes", value=len(kept.trouble))
    yield Sample(name="shardwise_drift_band_ratio", value=seen.params.replan.band)
    for what in ("processes", "placement_groups"):
        yield Sample(name="shardwise_swept", value=kept.counts[what], labels=(what,))
    if last is not None and last.saturation is not None:
        yield Sample(name="shardwise_saturation_ratio", value=last.saturation)


def _pools(seen: Seen) -> Iterator[Sample]:
    last, snapshot = seen.last, seen.snapshot
    for params in seen.params.pools:
        values: dict[str, float] = {
            "shardwise_minimum_replicas": params.minimum,
            "shardwise_maximum_replicas": params.maximum,
        }
        if last is not None:
            told: dict[str, Mapping[str, float]] = {
                "shardwise_desired_replicas": last.desired,
                "shardwise_forecast_load_replicas": last.forecast,
                "shardwise_delivered_ratio": last.delivered,
            }
            values |= {name: of[params.pool] for name, of in told.items() if params.pool in of}
        for load in snapshot.loads if snapshot is not None else ():
            if load.pool == params.pool:
                busy = SCALING_POLICIES[seen.params.scaling.policy](load, params.capacity)
                values["shardwise_load_replicas"] = busy.arriving
        for size in snapshot.pools if snapshot is not None else ():
            if size.pool == params.pool:
                values |= _size(size, now_s=seen.now_s)
        for name, value in values.items():
            yield Sample(name=name, value=value, labels=(params.pool,))


def _size(size: PoolObservation, *, now_s: float) -> dict[str, float]:
    return {
        "shardwise_target_replicas": size.target,
        "shardwise_pending_replicas": size.pending,
        "shardwise_moving": bool(size.moving),
        "shardwise_unmet_placement": bool(size.unmet),
        "shardwise_faulty_replicas": sum(bool(r.device_fault) for r in size.replicas),
        "shardwise_oldest_start_seconds": max(
            (now_s - start.since_s for start in size.starting), default=0.0
        ),
    }


def _plan(seen: Seen) -> Iterator[Sample]:
    """Of the main pool: what its plan predicts, and what is seen."""
    replan = seen.params.replan
    workloads = () if seen.snapshot is None else seen.snapshot.workloads
    workload = next((item for item in workloads if item.pool == MAIN_POOL), None)
    values = {
        "shardwise_plan_ttft_seconds": replan.planned.ttft_s or math.nan,
        "shardwise_plan_tpot_seconds": replan.planned.tpot_s or math.nan,
    }
    if workload is not None:
        values["shardwise_seen_ttft_seconds"] = workload.ttft_s
        values["shardwise_seen_tpot_seconds"] = workload.tpot_s
        for quantity, ratio in ratios(workload, replan).items():
            labels = (MAIN_POOL, quantity)
            yield Sample(name="shardwise_drift_ratio", value=ratio, labels=labels)
    for name, value in values.items():
        if math.isfinite(value):
            yield Sample(name=name, value=value, labels=(MAIN_POOL,))


def _memory(heard: Heard) -> Iterator[Sample]:
    """Of replicas that report; the rest of what they say, gateways hear beside the account."""
    for replica_id, report in heard.replicas.items():
        use = heard.kept.uses.get(replica_id)
        if use is not None:
            labels = (report.pool, replica_id)
            yield Sample(name="shardwise_replica_host_bytes", value=use.host_bytes, labels=labels)
            yield Sample(
                name="shardwise_replica_device_bytes", value=use.device_bytes, labels=labels
            )
