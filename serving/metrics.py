"""What does the gateway count? Prometheus series, one registry per gateway process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_GAP_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


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
        self.ready = Gauge(
            "shardwise_ready_replicas", "Replicas that answer", ["pool"], registry=self.registry
        )
        self.tier = Gauge("shardwise_tier", "Degradation tier, 0 to 4", registry=self.registry)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self.registry)
