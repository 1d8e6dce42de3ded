"""What does the controller tell? Its account, which every gateway shows; take the maximum.

It comes with each directive. A gateway that has not heard from the controller for a minute shows
nothing of it: what is stale is unknown.
"""

from __future__ import annotations

from autoscaler.drift import QUANTITIES
from autoscaler.reasons import REASONS
from serving.telemetry.gateway_rows import POOL, REPLICA
from serving.telemetry.metric import Kind, Label, Metric

QUANTITY = Label(name="quantity", values=QUANTITIES)
ACTION = Label(name="action", values=tuple(action.value for action in REASONS))
REASON = Label(
    name="reason", values=tuple(reason.value for group in REASONS.values() for reason in group)
)
LEFT = Label(name="what", values=("processes", "placement_groups"))
MOVED = Label(name="outcome", values=("done", "rolled_back"))


def _told(
    name: str,
    says: str,
    *labels: Label,
    unit: str,
    kind: Kind = "gauge",
    rows: tuple[tuple[str, ...], ...] | None = None,
) -> Metric:
    return Metric(
        name=name, kind=kind, unit=unit, source="controller", says=says, labels=labels, rows=rows
    )


ACCOUNT_METRICS = (
    _told("shardwise_minimum_replicas", "bound of the pool", POOL, unit="replicas"),
    _told("shardwise_maximum_replicas", "bound of the pool", POOL, unit="replicas"),
    _told(
        "shardwise_desired_replicas",
        "what the load wants now, before delays and steps",
        POOL,
        unit="replicas",
    ),
    _told("shardwise_target_replicas", "what Serve was last asked for", POOL, unit="replicas"),
    _told("shardwise_pending_replicas", "asked for and not answering yet", POOL, unit="replicas"),
    _told(
        "shardwise_load_replicas",
        "replicas that the arrivals keep busy, as the scaling policy counts",
        POOL,
        unit="replicas",
    ),
    _told(
        "shardwise_forecast_load_replicas",
        "the same as forecast for the end of a cold start (`steering.cold_start_s` ahead)",
        POOL,
        unit="replicas",
    ),
    _told(
        "shardwise_delivered_ratio",
        "measured over planned speed of the replicas",
        POOL,
        unit="ratio",
    ),
    _told(
        "shardwise_saturation_ratio",
        "how full the service is; absent while that is unknown",
        unit="ratio",
    ),
    _told(
        "shardwise_decisions_total",
        "decisions by action and [reason](runbook.md#reasons), advice included",
        *(POOL, ACTION, REASON),
        unit="decisions",
        kind="counter",
        rows=tuple(
            (action.value, reason.value) for action, group in REASONS.items() for reason in group
        ),
    ),
    _told(
        "shardwise_plan_ttft_seconds",
        "TTFT that the plan in force predicts, without the wait in line; of the main pool",
        POOL,
        unit="s",
    ),
    _told("shardwise_plan_tpot_seconds", "TPOT that it predicts", POOL, unit="s"),
    _told(
        "shardwise_seen_ttft_seconds",
        "mean TTFT of streams without the wait in line, smoothed (`steering.replan.half_life_s`)",
        POOL,
        unit="s",
    ),
    _told("shardwise_seen_tpot_seconds", "mean TPOT of streams, smoothed", POOL, unit="s"),
    _told(
        "shardwise_drift_ratio",
        "seen over planned, where both are known and can be compared now",
        *(POOL, QUANTITY),
        unit="ratio",
    ),
    _told(
        "shardwise_drift_band_ratio",
        "a drift ratio outside 1/band to band is drift",
        unit="ratio",
    ),
    _told("shardwise_moving", "1 while the pool moves to another layout", POOL, unit="0 or 1"),
    _told(
        "shardwise_moves_total",
        "moves to another layout that have ended",
        MOVED,
        unit="moves",
        kind="counter",
    ),
    _told(
        "shardwise_oldest_start_seconds",
        "how long the oldest start has taken by now, 0 if none is under way",
        POOL,
        unit="s",
    ),
    _told(
        "shardwise_unmet_placement",
        "1 while no node has room for a replica that was asked for",
        POOL,
        unit="0 or 1",
    ),
    _told(
        "shardwise_faulty_replicas",
        "replicas with a device that its node calls faulty",
        POOL,
        unit="replicas",
    ),
    _told(
        "shardwise_replica_restarts",
        "restarted as faulty, since the controller's start",
        POOL,
        unit="replicas",
    ),
    _told(
        "shardwise_faults_noticed_total",
        "restarts of replicas that were frozen, mute or stuck in their start",
        POOL,
        unit="replicas",
        kind="counter",
    ),
    _told(
        "shardwise_fault_noticed_seconds_total",
        "how long these had been so when they were restarted, summed",
        POOL,
        unit="s",
        kind="counter",
    ),
    _told(
        "shardwise_faults_restored_total",
        "restarts after which as many replicas answer as are asked for",
        POOL,
        unit="replicas",
        kind="counter",
    ),
    _told(
        "shardwise_fault_restored_seconds_total",
        "how long that took from the restart, summed",
        POOL,
        unit="s",
        kind="counter",
    ),
    _told(
        "shardwise_retired_replicas",
        "drained and restarted for their memory, since the controller's start",
        POOL,
        unit="replicas",
    ),
    _told(
        "shardwise_swept",
        "left of replicas and removed, since the controller's start",
        LEFT,
        unit="count",
    ),
    _told("shardwise_replica_host_bytes", "of all its processes", POOL, REPLICA, unit="bytes"),
    _told(
        "shardwise_replica_device_bytes",
        "of all its processes, NaN where unknown",
        *(POOL, REPLICA),
        unit="bytes",
    ),
    _told("shardwise_replica_running", "sequences in its batch", POOL, REPLICA, unit="sequences"),
    _told(
        "shardwise_replica_waiting",
        "sequences accepted and not begun",
        *(POOL, REPLICA),
        unit="sequences",
    ),
    _told("shardwise_replica_kv_usage_ratio", "KV blocks in use", POOL, REPLICA, unit="fraction"),
    _told(
        "shardwise_replica_prompt_tokens_total",
        "tokens of prompts its engine has computed",
        *(POOL, REPLICA),
        unit="tokens",
        kind="counter",
    ),
    _told(
        "shardwise_replica_output_tokens_total",
        "tokens its engine has made",
        *(POOL, REPLICA),
        unit="tokens",
        kind="counter",
    ),
    _told(
        "shardwise_replica_steps_total",
        "steps of its engine",
        *(POOL, REPLICA),
        unit="steps",
        kind="counter",
    ),
    _told(
        "shardwise_unseen_nodes",
        "nodes whose memory or devices cannot be looked at",
        unit="nodes",
    ),
    _told(
        "shardwise_controller_trouble",
        "1 while Serve does not answer the controller, or its log cannot be written",
        unit="0 or 1",
    ),
    _told("shardwise_tick_age_seconds", "since its last step", unit="s"),
    _told(
        "shardwise_controller_start_time_seconds",
        "when the controller began, Unix time",
        unit="s",
    ),
)
