"""How does a gateway show the controller's account? As it came, by the contract, while it is fresh.

With what the controller has told of each replica. A collector: series are made anew for each
scrape, so that those of replicas that are gone are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from serving.messages import ReplicaReport
from serving.telemetry.account_rows import ACCOUNT_METRICS
from serving.telemetry.metric import Metric, Sample


class AccountMetrics(Collector):
    """`samples`: the account; empty: it is not known. `pools`: those that are served.

    `replicas`: their last reports.
    """

    def __init__(self, pools: tuple[str, ...] = ()) -> None:
        self.pools = pools
        self.samples: tuple[Sample, ...] = ()
        self.replicas: tuple[ReplicaReport, ...] = ()

    def collect(self) -> Iterator[Family]:
        """Called for each scrape."""
        if not self.samples:
            return
        told: dict[str, dict[tuple[str, ...], float]] = {}
        for sample in (*self.samples, *_engines(self.replicas)):
            told.setdefault(sample.name, {})[sample.labels] = sample.value
        for metric in ACCOUNT_METRICS:
            family = _family(metric, told.get(metric.name, {}), pools=self.pools)
            if family.samples:
                yield family


def _engines(replicas: Iterable[ReplicaReport]) -> Iterator[Sample]:
    for report in replicas:
        labels = (report.pool, report.replica_id)
        values: dict[str, float] = {
            "running": report.running,
            "waiting": report.waiting,
            "kv_usage_ratio": report.kv_usage,
            "prompt_tokens_total": report.prompt_tokens,
            "output_tokens_total": report.output_tokens,
            "steps_total": report.steps,
        }
        for name, value in values.items():
            yield Sample(name=f"shardwise_replica_{name}", value=value, labels=labels)


def _family(
    metric: Metric, values: dict[tuple[str, ...], float], *, pools: tuple[str, ...]
) -> Family:
    labels = metric.label_names
    if metric.kind == "counter":
        family: Family = CounterMetricFamily(metric.base, metric.says, labels=labels)
        # What has never happened is 0, and not absent.
        values = dict.fromkeys(metric.zeros(pools), 0.0) | values
    else:
        family = GaugeMetricFamily(metric.base, metric.says, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)  # type: ignore[attr-defined]
    return family
