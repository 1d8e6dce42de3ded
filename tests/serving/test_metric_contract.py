"""The contract of metrics: names as Prometheus wants them, and labels with the values there are."""

from __future__ import annotations

import re

import pytest

from serving.long_input.policies import CHOICES
from serving.telemetry.contract import CONTRACT, scraped
from serving.telemetry.engine_rows import READ
from serving.telemetry.gateway_rows import PART, POLICY
from serving.telemetry.metric import Label, Metric, by_name
from serving.weights.spec import StartParts

FIELDS = StartParts.__dataclass_fields__


@pytest.mark.parametrize("metric", CONTRACT.values(), ids=lambda metric: metric.name)
def test_names_say_type_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"shardwise_[a-z0-9_]+|vllm:[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.unit == "s":
        assert re.search(r"_seconds(_total)?$", metric.name)
    if metric.unit == "bytes":
        assert metric.name.endswith("_bytes")
    assert (metric.kind == "histogram") == bool(metric.buckets)


@pytest.mark.parametrize("metric", scraped(), ids=lambda metric: metric.name)
def test_labels_have_few_values_or_something_that_bounds_them(metric: Metric) -> None:
    for label in metric.labels:
        assert bool(label.values) != bool(label.bound)
    known = [len(label.values) for label in metric.labels if label.values]
    rows = len(metric.rows) if metric.rows is not None else 1
    for count in known if metric.rows is None else known[:1]:
        rows *= count
    assert rows <= 100


def test_label_values_are_those_of_the_code() -> None:
    assert POLICY.values == CHOICES
    assert PART.values == tuple(name.removesuffix("_s") for name in FIELDS)


def test_what_is_read_of_the_engine_is_in_the_contract() -> None:
    assert set(READ.values()) == {m.name for m in CONTRACT.values() if m.source == "engine"}


def test_a_name_stands_once() -> None:
    metric = CONTRACT["shardwise_tier"]
    with pytest.raises(ValueError, match="twice"):
        by_name((metric, metric))


def test_counters_begin_for_the_pools_that_are_served() -> None:
    def zeros(*labels: Label) -> tuple[tuple[str, ...], ...]:
        return Metric(
            name="a_total", kind="counter", unit="", source="gateway", says="", labels=labels
        ).zeros(("main",))

    pool = Label(name="pool", values=("main", "light"))
    two = Label(name="two", values=("a", "b", "c"), zeros=("a", "b"))
    assert zeros(pool, two) == (("main", "a"), ("main", "b"))
    assert zeros(pool, Label(name="replica", bound="those that live")) == ()
    assert zeros(two) == (("a",), ("b",))
