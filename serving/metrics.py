"""What does the gateway count? Prometheus series, one registry per gateway process.

Names, labels and words are the contract's (`serving.telemetry.contract`). Counters of what has not
happened yet are there at 0: a rate needs a series before its first event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from cluster.model.workload import Slo
from serving.messages import DONE, EngineError, EngineReply, ReplicaReport
from serving.slo import Ended, met
from serving.telemetry.account_metrics import AccountMetrics
from serving.telemetry.contract import CONTRACT


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
    """The gateway's series. `pools`: those that are served. `slo`: the plan's."""

    def __init__(self, *, pools: Sequence[str] = (), slo: Slo | None = None) -> None:
        # They would be a second series for each counter, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._pools = tuple(pools)
        self._slo = slo or Slo()
        self.requests = self._counter("shardwise_requests_total")
        self.slo_requests = self._counter("shardwise_slo_requests_total")
        self.output_chunks = self._counter("shardwise_output_chunks_total")
        self.retries = self._counter("shardwise_retries_total")
        self.moved = self._counter("shardwise_moved_requests_total")
        self.resumed = self._counter("shardwise_resumed_streams_total")
        self.canaries = self._counter("shardwise_canary_total")
        self.broken = self._counter("shardwise_broken_streams_total")
        self.degraded = self._counter("shardwise_degraded_total")
        self.key_tokens = self._counter("shardwise_key_tokens_total")
        self.predicted_output = self._counter("shardwise_predicted_output_tokens_total")
        self.output_tokens = self._counter("shardwise_output_tokens_total")
        self.long_inputs = self._counter("shardwise_long_inputs_total")
        self.long_input_cut = self._counter("shardwise_long_input_cut_tokens_total")
        self.output_ratio = self._histogram("shardwise_output_ratio")
        self.ttft = self._histogram("shardwise_ttft_seconds")
        self.engine_ttft = self._histogram("shardwise_engine_ttft_seconds")
        self.tpot = self._histogram("shardwise_tpot_seconds")
        self.itl = self._histogram("shardwise_itl_seconds")
        self.queued = self._gauge("shardwise_queued_requests")
        self.oldest_wait = self._gauge("shardwise_oldest_wait_seconds")
        self.in_flight = self._gauge("shardwise_in_flight_tokens")
        self.arriving = self._gauge("shardwise_arriving_work")
        self.ready = self._gauge("shardwise_ready_replicas")
        self.replica_start = self._gauge("shardwise_replica_start_seconds")
        self.held_starts = self._gauge("shardwise_starts_held")
        self.directive_age = self._gauge("shardwise_directive_age_seconds")
        self.tasks = self._gauge("shardwise_tasks")
        self.tier = self._gauge("shardwise_tier")
        self.account = AccountMetrics(self._pools)
        self.registry.register(self.account)
        for name, bound_s in (("ttft", self._slo.ttft_s), ("tpot", self._slo.tpot_s)):
            gauge = self._gauge(f"shardwise_slo_{name}_seconds")
            for pool in self._pools:
                gauge.labels(pool).set(math.inf if bound_s is None else bound_s)

    def cadence(self, pool: str) -> Cadence:
        """For one stream of this pool."""
        return Cadence(self.output_chunks.labels(pool), self.itl.labels(pool))

    def ended(self, ended: Ended) -> None:
        """A request is over: has it met the SLO?"""
        verdict = met(ended, self._slo)
        if verdict is not None and ended.pool is not None:
            self.slo_requests.labels(ended.pool, "met" if verdict else "missed").inc()

    def streamed(self, pool: str, *, ttft_s: float, decode_s: float, tokens: int) -> None:
        """A stream has come to its end. `ttft_s`: without its wait in line."""
        self.engine_ttft.labels(pool).observe(ttft_s)
        if tokens > 1:
            self.tpot.labels(pool).observe(decode_s / (tokens - 1))

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

    def _counter(self, name: str) -> Counter:
        metric = CONTRACT[name]
        made = Counter(metric.base, metric.says, metric.label_names, registry=self.registry)
        for values in metric.zeros(self._pools) if metric.labels else ():
            made.labels(*values)
        return made

    def _gauge(self, name: str) -> Gauge:
        metric = CONTRACT[name]
        return Gauge(metric.base, metric.says, metric.label_names, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = CONTRACT[name]
        made = Histogram(
            metric.base,
            metric.says,
            metric.label_names,
            buckets=metric.buckets,
            registry=self.registry,
        )
        for values in metric.zeros(self._pools):
            made.labels(*values)
        return made
