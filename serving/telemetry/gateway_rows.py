"""What does each gateway count itself? Its part of the contract; sum over gateways."""

from __future__ import annotations

from autoscaler.params import POOL_NAMES
from cluster.priority import Priority
from serving.telemetry.metric import Label, Metric

_LATENCY_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_TOKEN_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0)
_RATIO = (0.125, 0.25, 0.5, 0.75, 1.0, 1.33, 2.0, 4.0, 8.0)

POOL = Label(name="pool", values=POOL_NAMES)
REPLICA = Label(name="replica", bound="living replicas; gone with them")
# A request that ended before it was admitted to a pool has none.
ENDED_IN = Label(name="pool", values=(*POOL_NAMES, "none"))
STATUS = Label(name="status", bound="HTTP statuses of the API", zeros=("200", "429", "503"))
PRIORITY = Label(name="priority", values=tuple(each.value for each in Priority))
VERDICT = Label(name="verdict", values=("met", "missed"))
OUTCOME = Label(name="outcome", values=("answered", "refused", "lost"))
CHANGE = Label(name="change", values=("logprobs-off", "max-tokens", "light-model", "shed"))
KEY = Label(name="key", bound="names in the key file")
TOKENS = Label(name="kind", values=("prompt", "output"))
POLICY = Label(name="policy", values=("reject", "sliding_window", "middle_out", "rerank", "memory"))
PART = Label(name="part", values=("weights", "engine", "warmup"))


def _counter(name: str, says: str, *labels: Label, unit: str = "requests") -> Metric:
    return Metric(name=name, kind="counter", unit=unit, source="gateway", says=says, labels=labels)


def _gauge(name: str, says: str, *labels: Label, unit: str) -> Metric:
    return Metric(name=name, kind="gauge", unit=unit, source="gateway", says=says, labels=labels)


def _histogram(name: str, says: str, *, unit: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(
        name=name,
        kind="histogram",
        unit=unit,
        source="gateway",
        says=says,
        labels=(POOL,),
        buckets=buckets,
    )


GATEWAY_METRICS = (
    _counter(
        "shardwise_requests_total",
        "requests ended; status 499: the caller left; pool `none`: ended before admission",
        *(ENDED_IN, STATUS, PRIORITY),
    ),
    _counter(
        "shardwise_slo_requests_total",
        "requests that count for the plan's SLO: answered within it or not; refused (429) and "
        "failed (5xx) ones are missed, other refusals and callers who left do not count",
        *(POOL, VERDICT),
    ),
    _gauge(
        "shardwise_slo_ttft_seconds", "the plan's bound of TTFT, +Inf without one", POOL, unit="s"
    ),
    _gauge(
        "shardwise_slo_tpot_seconds", "the plan's bound of TPOT, +Inf without one", POOL, unit="s"
    ),
    _histogram(
        "shardwise_ttft_seconds",
        "arrival to first reply; of an answer that is not streamed, the whole",
        unit="s",
        buckets=_LATENCY_S,
    ),
    _histogram(
        "shardwise_engine_ttft_seconds",
        "the same of streams without their wait in line: what a plan predicts",
        unit="s",
        buckets=_LATENCY_S,
    ),
    _histogram(
        "shardwise_tpot_seconds",
        "time per output token of a stream after its first, by stream",
        unit="s",
        buckets=_TOKEN_S,
    ),
    _histogram(
        "shardwise_itl_seconds",
        "gap between two replies of one stream; replies sent together have none",
        unit="s",
        buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    ),
    _counter("shardwise_output_chunks_total", "stream events sent to callers", POOL, unit="events"),
    _counter("shardwise_retries_total", "requests sent to another replica after one failed", POOL),
    _counter(
        "shardwise_moved_requests_total",
        "streams without a first token taken back and given to a better replica",
        POOL,
    ),
    _counter(
        "shardwise_resumed_streams_total",
        "streams taken up by another replica after theirs was lost",
        POOL,
    ),
    _counter("shardwise_broken_streams_total", "answers cut short after their first reply", POOL),
    _counter(
        "shardwise_canary_total", "tokens asked of silent replicas", POOL, OUTCOME, unit="tokens"
    ),
    _counter("shardwise_degraded_total", "requests changed or shed by a tier", CHANGE),
    _counter(
        "shardwise_long_inputs_total",
        "requests whose prompt did not fit, by what was done; with `memory` also those to which "
        "something came back",
        POLICY,
    ),
    _counter(
        "shardwise_long_input_cut_tokens_total", "tokens cut from prompts", POLICY, unit="tokens"
    ),
    _counter("shardwise_key_tokens_total", "used by an API key", KEY, TOKENS, unit="tokens"),
    _counter(
        "shardwise_predicted_output_tokens_total",
        "output tokens that finished answers were predicted to have",
        POOL,
        unit="tokens",
    ),
    _counter(
        "shardwise_output_tokens_total",
        "output tokens of finished answers; over those predicted: the bias of the load",
        POOL,
        unit="tokens",
    ),
    _histogram(
        "shardwise_output_ratio",
        "actual over predicted output tokens, by request",
        unit="ratio",
        buckets=_RATIO,
    ),
    _gauge("shardwise_queued_requests", "waiting in line", POOL, unit="requests"),
    _gauge("shardwise_oldest_wait_seconds", "longest wait of those in line", POOL, unit="s"),
    _gauge(
        "shardwise_in_flight_tokens",
        "predicted tokens dispatched and not finished",
        POOL,
        unit="tokens",
    ),
    _gauge(
        "shardwise_arriving_work",
        "engine-seconds of work that arrive per second: replicas that they keep busy",
        POOL,
        unit="replicas",
    ),
    _gauge("shardwise_ready_replicas", "that may be chosen", POOL, unit="replicas"),
    _gauge(
        "shardwise_replica_start_seconds",
        "what the start of the newest replica took: `weights` until they were on its node, "
        "`engine`, `warmup`",
        *(POOL, PART),
        unit="s",
    ),
    _gauge(
        "shardwise_starts_held",
        "1 while starts fail and no more is asked for than answers, as the controller says",
        POOL,
        unit="0 or 1",
    ),
    _gauge("shardwise_tier", "degradation tier in force at this gateway", unit="0 to 4"),
    _gauge(
        "shardwise_directive_age_seconds",
        "since the controller last answered this gateway",
        unit="s",
    ),
    _gauge(
        "shardwise_tasks",
        "asyncio tasks of the process: as many as at rest whenever nobody asks",
        unit="tasks",
    ),
)
