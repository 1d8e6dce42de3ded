"""Series under which each alert fires, and those of a healthy service, in promtool's notation.

A case is what differs from health, and when the alert fires, with its labels beside severity.
"""

from __future__ import annotations

from dataclasses import dataclass, field

JOB = 'job="shardwise"'
MAIN = f'{{{JOB}, instance="g1", pool="main"}}'
LIGHT = f'{{{JOB}, instance="g1", pool="light"}}'
SERVICE = f'{{{JOB}, instance="g1"}}'
_OF = f'{{{JOB}, instance="g1", '


def _decisions(action: str, reason: str) -> str:
    return f'shardwise_decisions_total{_OF}pool="main", action="{action}", reason="{reason}"}}'


def _requests(verdict: str) -> str:
    return f'shardwise_slo_requests_total{_OF}pool="main", verdict="{verdict}"}}'


DRIFT = f'shardwise_drift_ratio{_OF}pool="main", quantity="prompt_tokens"}}'
ROLLED_BACK = f'shardwise_moves_total{_OF}outcome="rolled_back"}}'
UP = f"up{SERVICE}"

# One value a minute; a thousand of them.
HEALTHY: dict[str, str] = {
    UP: "1x1000",
    _requests("met"): "0+600x1000",
    _requests("missed"): "0+1x1000",
    f"shardwise_queued_requests{MAIN}": "0 3 1 0 0 2 5 1 0 0 0x990",
    f"shardwise_tier{SERVICE}": "0 1 1 0 0x996",
    f"shardwise_desired_replicas{MAIN}": "2x1000",
    f"shardwise_maximum_replicas{MAIN}": "4x1000",
    f"shardwise_minimum_replicas{MAIN}": "1x1000",
    f"shardwise_saturation_ratio{SERVICE}": "0.6x1000",
    f"shardwise_ready_replicas{MAIN}": "2x1000",
    f"shardwise_starts_held{MAIN}": "0x1000",
    f"shardwise_oldest_start_seconds{MAIN}": "0 60 120 0 0x996",
    f"shardwise_unmet_placement{MAIN}": "0 1 0 0x997",
    f"shardwise_faulty_replicas{MAIN}": "0x1000",
    f"shardwise_delivered_ratio{MAIN}": "0.9x1000",
    f"shardwise_unseen_nodes{SERVICE}": "0x1000",
    f"shardwise_broken_streams_total{MAIN}": "0x1000",
    DRIFT: "1.2x1000",
    f"shardwise_drift_band_ratio{SERVICE}": "1.5x1000",
    ROLLED_BACK: "0x1000",
    f"shardwise_directive_age_seconds{SERVICE}": "0.4x1000",
    f"shardwise_tick_age_seconds{SERVICE}": "0.6x1000",
    f"shardwise_controller_start_time_seconds{SERVICE}": "1000x300 2000x700",
    f"shardwise_controller_trouble{SERVICE}": "0 1 0 0x997",
    _decisions("restart", "stalled"): "0x200 1x400 2x398",
    _decisions("restart", "device_fault"): "0x1000",
    _decisions("retire", "leak"): "0x1000",
    # A lighter model that is not needed, and another service that nobody asks.
    f"shardwise_ready_replicas{LIGHT}": "0x1000",
    f"shardwise_minimum_replicas{LIGHT}": "0x1000",
    f"shardwise_queued_requests{LIGHT}": "0x1000",
}


@dataclass(frozen=True)
class Case:
    """`series`: what is not as in health. `labels`: of the alert, beside its severity."""

    alert: str
    series: dict[str, str]
    at: str = "30m"
    labels: dict[str, str] = field(default_factory=lambda: {"pool": "main"})


CASES = (
    Case(
        "ShardwiseErrorBudgetBurnsFast",
        {_requests("missed"): "0+120x1000"},
        at="90m",
    ),
    Case(
        "ShardwiseErrorBudgetBurnsSlowly",
        {_requests("missed"): "0+50x1000"},
        at="7h",
    ),
    Case("ShardwiseQueueGrows", {f"shardwise_queued_requests{MAIN}": "1+2x1000"}),
    Case("ShardwiseTierHigh", {f"shardwise_tier{SERVICE}": "3x1000"}, labels={}),
    Case(
        "ShardwisePoolTooSmall",
        {
            f"shardwise_desired_replicas{MAIN}": "4x1000",
            f"shardwise_saturation_ratio{SERVICE}": "1.1x1000",
        },
    ),
    Case(
        "ShardwiseBrokenStreams",
        {f"shardwise_broken_streams_total{MAIN}": "0x25 1x975"},
    ),
    Case("ShardwiseNoReadyReplica", {f"shardwise_ready_replicas{MAIN}": "2x10 0x990"}),
    Case(
        "ShardwiseNoReadyReplica",  # asleep, and asked for
        {
            f"shardwise_ready_replicas{MAIN}": "0x1000",
            f"shardwise_minimum_replicas{MAIN}": "0x1000",
            f"shardwise_queued_requests{MAIN}": "2x1000",
        },
    ),
    Case("ShardwiseStartsFail", {f"shardwise_starts_held{MAIN}": "0x10 1x990"}),
    Case("ShardwiseStartStuck", {f"shardwise_oldest_start_seconds{MAIN}": "0+60x1000"}),
    Case("ShardwisePlacementUnmet", {f"shardwise_unmet_placement{MAIN}": "1x1000"}),
    Case(
        "ShardwiseReplicasRestart",
        {_decisions("restart", "stalled"): "0x10 1x5 2x5 3x980"},
    ),
    Case("ShardwiseDeviceFault", {f"shardwise_faulty_replicas{MAIN}": "1x1000"}),
    Case(  # it was restarted elsewhere at once
        "ShardwiseDeviceFault", {_decisions("restart", "device_fault"): "0x25 1x975"}
    ),
    Case("ShardwiseLeak", {_decisions("retire", "leak"): "0x10 1x990"}),
    Case("ShardwiseReplicasSlow", {f"shardwise_delivered_ratio{MAIN}": "0.4x1000"}),
    Case("ShardwiseNodeUnseen", {f"shardwise_unseen_nodes{SERVICE}": "1x1000"}, labels={}),
    Case("ShardwiseDrift", {DRIFT: "1.6x1000"}, labels={"quantity": "prompt_tokens"}),
    Case("ShardwiseDrift", {DRIFT: "0.6x1000"}, labels={"quantity": "prompt_tokens"}),
    Case("ShardwiseMoveRolledBack", {ROLLED_BACK: "0x10 1x990"}, labels={}),
    Case(
        "ShardwiseControllerSilent",
        {f"shardwise_directive_age_seconds{SERVICE}": "0x10 0+60x990"},
        labels={},
    ),
    Case(
        "ShardwiseControllerSilent",
        {f"shardwise_tick_age_seconds{SERVICE}": "0x10 0+60x990"},
        labels={},
    ),
    Case(
        "ShardwiseControllerRestarts",
        {f"shardwise_controller_start_time_seconds{SERVICE}": "1x5 2x5 3x5 4x985"},
        labels={},
    ),
    Case(
        "ShardwiseControllerTrouble",
        {f"shardwise_controller_trouble{SERVICE}": "1x1000"},
        labels={},
    ),
    Case(
        "ShardwiseTargetDown",
        {UP: "1x20 0x980", f"shardwise_tier{SERVICE}": "0x20 stale"},
        labels={"instance": "g1"},
    ),
    Case("ShardwiseGone", {f"shardwise_tier{SERVICE}": "0x20 stale"}, labels={}),
)
