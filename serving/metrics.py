"""What does the gateway count? Prometheus series, one registry per gateway process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from serving.messages import DONE, EngineError, EngineReply, ReplicaReport
from serving.node_metrics import NodeMetrics

_LATENCY_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_RATIO = (0.125, 0.25, 0.5, 0.75, 1.0, 1.33, 2.0, 4.0, 8.0)
_GAP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Cadence:
    """Counts the events of one stream, and the gaps between them."""

    def __init__(self, chunks: Counter, gaps: Histogram) -> None:
        self._chunks, self._gaps = chunks, gaps
        self._last_s: float | None = None

    def sent(self, replies: Sequence[EngineReply], *, now_s: float) -> None:
        """These have gone to the caller; between those that came at once there is no gap."""
        events = 0
        for reply in replies:
            if reply == DONE or isinstance(reply, EngineError):
                continue
            events += 1
            if self._last_s is not None:
                self._gaps.observe(now_s - self._last_s)
            self._last_s = now_s
        if events:
            self._chunks.inc(events)


class GatewayMetrics:
    """The gateway's series. Labels have few values: pools, statuses, priorities, tiers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "shardwise_requests",
            "Requests ended, by pool, HTTP status (499: the caller left) and priority",
            ["pool", "status", "priority"],
            registry=self.registry,
        )
        self.output_chunks = Counter(
            "shardwise_output_chunks",
            "Stream events sent to callers",
            ["pool"],
            registry=self.registry,
        )
        self.retries = Counter(
            "shardwise_retries",
            "Requests sent to another replica after one failed",
            ["pool"],
            registry=self.registry,
        )
        self.moved = Counter(
            "shardwise_moved_requests",
            "Streams without a first token taken back and given to a better replica",
            ["pool"],
            registry=self.registry,
        )
        self.resumed = Counter(
            "shardwise_resumed_streams",
            "Streams taken up by another replica after theirs was lost",
            ["pool"],
            registry=self.registry,
        )
        self.canaries = Counter(
            "shardwise_canary",
            "Canary tokens asked of replicas, by outcome: answered, refused, lost",
            ["pool", "outcome"],
            registry=self.registry,
        )
        self.broken = Counter(
            "shardwise_broken_streams",
            "Answers cut short by an error after their first reply",
            ["pool"],
            registry=self.registry,
        )
        self.degraded = Counter(
            "shardwise_degraded",
            "Requests changed or shed by a tier",
            ["change"],
            registry=self.registry,
        )
        self.key_tokens = Counter(
            "shardwise_key_tokens",
            "Tokens used by an API key, by kind: prompt, output",
            ["key", "kind"],
            registry=self.registry,
        )
        self.predicted_output = Counter(
            "shardwise_predicted_output_tokens",
            "Output tokens that finished answers were predicted to have",
            ["pool"],
            registry=self.registry,
        )
        self.output_tokens = Counter(
            "shardwise_output_tokens",
            "Output tokens that finished answers had",
            ["pool"],
            registry=self.registry,
        )
        self.output_ratio = Histogram(
            "shardwise_output_ratio",
            "Output tokens of a finished request over those predicted",
            ["pool"],
            buckets=_RATIO,
            registry=self.registry,
        )
        self.long_inputs = Counter(
            "shardwise_long_inputs",
            "Requests whose prompt did not fit, by what was done",
            ["policy"],
            registry=self.registry,
        )
        self.long_input_cut = Counter(
            "shardwise_long_input_cut_tokens",
            "Tokens of prompts that were cut away",
            ["policy"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "shardwise_ttft_seconds",
            "Arrival at the gateway to first reply",
            ["pool"],
            buckets=_LATENCY_S,
            registry=self.registry,
        )
        self.itl = Histogram(
            "shardwise_itl_seconds",
            "Gap between two replies of one stream",
            ["pool"],
            buckets=_GAP_S,
            registry=self.registry,
        )
        self.queued = Gauge(
            "shardwise_queued_requests", "Waiting in line", ["pool"], registry=self.registry
        )
        self.in_flight = Gauge(
            "shardwise_in_flight_tokens",
            "Predicted tokens dispatched and not finished",
            ["pool"],
            registry=self.registry,
        )
        self.arriving = Gauge(
            "shardwise_arriving_work",
            "Engine-seconds of work that arrive per second: replicas that they keep busy",
            ["pool"],
            registry=self.registry,
        )
        self.delivered = Gauge(
            "shardwise_delivered_ratio",
            "Measured over planned speed of the pool's replicas",
            ["pool"],
            registry=self.registry,
        )
        self.ready = Gauge(
            "shardwise_ready_replicas", "Replicas that answer", ["pool"], registry=self.registry
        )
        self.replica_start = Gauge(
            "shardwise_replica_start_seconds",
            "What the start of the newest replica took, by part: weights, engine, warmup",
            ["pool", "part"],
            registry=self.registry,
        )
        self.restarts = Gauge(
            "shardwise_replica_restarts",
            "Replicas that were restarted as faulty, since the controller's start",
            ["pool"],
            registry=self.registry,
        )
        self.held_starts = Gauge(
            "shardwise_starts_held",
            "1 while the pool is asked for no more than answers, because starts fail; else 0",
            ["pool"],
            registry=self.registry,
        )
        self.tasks = Gauge(
            "shardwise_tasks",
            "Asyncio tasks of the gateway's process; more than when it is idle only while asked",
            registry=self.registry,
        )
        self.nodes = NodeMetrics(self.registry)
        self.tier = Gauge("shardwise_tier", "Degradation tier, 0 to 4", registry=self.registry)

    def cadence(self, pool: str) -> Cadence:
        """For one stream of this pool."""
        return Cadence(self.output_chunks.labels(pool), self.itl.labels(pool))

    def started(self, replicas: Iterable[ReplicaReport]) -> None:
        """What the newest replica of each pool said of its start."""
        for report in sorted(replicas, key=lambda report: report.started_s):
            if report.start is not None:
                for part, spent_s in asdict(report.start).items():
                    name = part.removesuffix("_s")
                    self.replica_start.labels(report.pool, name).set(spent_s)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
