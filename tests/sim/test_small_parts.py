"""Histogram, curve, batch gate, KV cache, time series, failure scripts: one law each."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import InputError
from cluster.sim.curve import Curve
from cluster.sim.failures import Fault, parse_failure
from cluster.sim.histogram import Histogram, merged
from cluster.sim.kv_cache import KvCache
from cluster.sim.record import Series

values = st.lists(st.floats(1e-6, 1e5), min_size=1, max_size=200)


@given(values, st.floats(0.0, 1.0))
def test_a_quantile_is_within_a_percent_of_a_value_that_occurred(drawn, share):
    histogram = Histogram()
    for value in drawn:
        histogram.add(value)
    found = histogram.quantile(share)
    exact = float(np.quantile(drawn, share, method="inverted_cdf"))
    assert found == pytest.approx(exact, rel=0.011)
    assert histogram.mean == pytest.approx(float(np.mean(drawn)))


@given(values, values)
def test_merging_counts_both(left, right):
    one, other, both = Histogram(), Histogram(), Histogram()
    for value in left:
        one.add(value)
        both.add(value)
    for value in right:
        other.add(value)
        both.add(value)
    whole = merged([one, other])
    assert whole.count == both.count
    assert whole.quantile(0.5) == both.quantile(0.5)


def test_an_empty_histogram_knows_nothing():
    assert math.isnan(Histogram().quantile(0.5))
    assert math.isnan(Histogram().mean)


def test_weights_count_as_so_many_values():
    histogram = Histogram()
    histogram.add(1.0, 99.0)
    histogram.add(100.0)
    assert histogram.quantile(0.5) == pytest.approx(1.0, rel=0.01)
    assert histogram.quantile(1.0) == pytest.approx(100.0, rel=0.01)


def test_a_curve_goes_on_at_its_last_slope():
    curve = Curve([0.0, 1.0, 3.0], [0.0, 2.0, 3.0])
    assert [curve(x) for x in (-1.0, 0.5, 2.0, 5.0)] == pytest.approx([0.0, 1.0, 2.5, 4.0])


hashes = st.integers(0, 12)


@given(st.lists(st.tuples(st.sampled_from(["begin", "end"]), st.integers(0, 8), st.integers(1, 6))))
def test_blocks_taken_are_given_back_and_the_cache_never_overflows(actions):
    cache, held = KvCache(30), []
    for action, start, length in actions:
        if action == "begin":
            names = tuple(range(start, start + length))
            hit = names[: cache.hits(names)]
            own = length - len(hit)
            if own + cache.blocks_woken(hit) <= cache.available:
                cache.hold(hit)
                cache.take(own)
                fresh = cache.share(names[len(hit) :])
                held.append(((*hit, *fresh), own - len(fresh)))
        elif held:
            shared, own = held.pop(0)
            cache.give(own)
            cache.drop(shared, blocks=1)
        used = {name for shared, _ in held for name in shared}
        assert cache.used == len(used) + sum(own for _, own in held)
        assert cache.used + cache.idle <= cache.capacity
    for shared, own in held:
        cache.give(own)
        cache.drop(shared, blocks=1)
    assert cache.used == 0


def test_the_longest_unused_prefix_is_evicted_first_and_of_it_the_last_block():
    cache = KvCache(4)
    for names in ((1, 2), (3, 4)):
        cache.take(2)
        cache.drop(cache.share(names), blocks=1)
    cache.take(1)
    assert [cache.hits((1, 2)), cache.hits((3, 4))] == [1, 2]
    cache.take(1)
    assert [cache.hits((1, 2)), cache.hits((3, 4))] == [0, 2]


def test_windows_are_joined_in_pairs_and_lose_nothing():
    series = Series()
    for second in range(3000):
        series.at(float(second)).arrived += 1
    assert len(series.windows) <= 600
    assert series.width_s == 8.0
    assert sum(window.arrived for window in series.windows) == 3000
    assert series.windows[10].arrived == 8


def test_a_failure_is_read_from_its_words():
    failure = parse_failure("slow@1.5min:main/2,for=30s,factor=3")
    assert (failure.kind, failure.at_s, failure.pool, failure.number) == (Fault.SLOW, 90, "main", 2)
    assert (failure.for_s, failure.factor) == (30.0, 3.0)
    assert parse_failure("crash@5:node/0").for_s == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "crash",
        "melt@5s:main/0",
        "crash@x:main/0",
        "slow@5s:main/0,fast=2",
        "slow@5s:main/0,factor=0.5",
    ],
)
def test_what_is_no_failure_is_said_with_an_example(text):
    with pytest.raises(InputError):
        parse_failure(text)
