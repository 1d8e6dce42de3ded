"""What is a metric of the contract? Its name, type, unit and labels, and the values these have.

Every label has few values: all of them are listed, or what bounds them is said. Pure data: the
contract is read by processes that count, by the page `docs/metrics.md`, and by tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
# GATEWAY: what this gateway has counted; sum over gateways. CONTROLLER: its account, the same at
# every gateway; take the maximum. ENGINE: vLLM's own, read inside the replica.
Source = Literal["gateway", "controller", "engine"]


@dataclass(frozen=True, kw_only=True)
class Label:
    """`values`: all there can be; empty where others decide, and `bound` says who.

    `zeros`: those whose counters are there, at 0, from the beginning on; None: all of them.
    """

    name: str
    values: tuple[str, ...] = ()
    bound: str = ""
    zeros: tuple[str, ...] | None = None

    @property
    def first(self) -> tuple[str, ...]:
        """Values that are there from the beginning on."""
        return self.values if self.zeros is None else self.zeros


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`name`: as Prometheus has it, of a histogram without its suffix. `says`: what it means.

    `rows`: the combinations of label values that exist, after the pool, where not all do.
    `buckets`: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    unit: str
    source: Source
    says: str
    labels: tuple[Label, ...] = ()
    rows: tuple[tuple[str, ...], ...] | None = None
    buckets: tuple[float, ...] = ()

    @property
    def base(self) -> str:
        """The name as client libraries want it: they add a counter's suffix themselves."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """In their order."""
        return tuple(label.name for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """Names of what is scraped."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)

    def zeros(self, pools: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """Label values of what is there before anything has happened; nothing if a label is open.

        `pools`: those that are served.
        """
        pooled = [pools] if self.label_names[:1] == ("pool",) else []
        if self.rows is not None:
            return tuple((*pool, *row) for pool in product(*pooled) for row in self.rows)
        others = self.labels[len(pooled) :]
        return tuple(product(*pooled, *(label.first for label in others)))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One value of the controller's account. `labels`: values, in the order of the contract."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def by_name(metrics: tuple[Metric, ...]) -> Mapping[str, Metric]:
    """Raises ValueError for a name that is there twice."""
    found = {metric.name: metric for metric in metrics}
    if len(found) != len(metrics):
        raise ValueError("a metric stands twice in the contract")
    return found
