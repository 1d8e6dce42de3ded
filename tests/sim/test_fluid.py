import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.sim.fluid import FluidPool, FluidSpec, advance, set_target

SPEC = FluidSpec(capacity_tokens_per_s=1000.0, capacity_in_flight_tokens=8000.0, cold_start_s=20.0)


def flow(pool, *, seconds, rate, dt_s=0.25):
    for _ in range(round(seconds / dt_s)):
        pool = advance(pool, dt_s=dt_s, arrival_tokens_per_s=rate)
    return pool


events = st.lists(
    st.tuples(st.floats(0.0, 5000.0), st.integers(0, 5), st.integers(1, 20)), max_size=20
)


@given(events)
@settings(max_examples=80, deadline=None)
def test_tokens_are_conserved_and_admission_is_bounded(sequence):
    pool = FluidPool(spec=SPEC, ready=1)
    for rate, target, steps in sequence:
        before = pool
        pool = set_target(pool, target)
        assert pool.target == target
        assert pool.ready <= before.ready
        for _ in range(steps):
            held = pool.in_flight_tokens
            pool = advance(pool, dt_s=0.5, arrival_tokens_per_s=rate)
            limit = max(held, pool.ready * SPEC.capacity_in_flight_tokens)
            assert pool.in_flight_tokens <= limit * (1 + 1e-9)
            inside = pool.in_flight_tokens + pool.queued_tokens
            assert math.isclose(
                pool.arrived_tokens, pool.finished_tokens + inside, rel_tol=1e-9, abs_tol=1e-6
            )
            assert pool.finished_tokens >= before.finished_tokens
            arrivals = [since_s for since_s, _ in pool.queue]
            assert arrivals == sorted(arrivals)


def test_a_full_replica_delivers_its_capacity():
    pool = flow(FluidPool(spec=SPEC, ready=1), seconds=100.0, rate=3000.0)
    later = flow(pool, seconds=100.0, rate=3000.0)
    delivered = (later.finished_tokens - pool.finished_tokens) / 100.0
    assert delivered == pytest.approx(1000.0, rel=0.02)  # first order in dt = 0.25 s of 8 s
    assert later.queued_tokens - pool.queued_tokens == pytest.approx(200_000.0, rel=0.02)


@pytest.mark.parametrize("ready", [1, 3])
def test_below_capacity_in_flight_follows_littles_law(ready):
    pool = flow(FluidPool(spec=SPEC, ready=ready), seconds=100.0, rate=500.0)
    assert pool.in_flight_tokens == pytest.approx(500.0 * 8.0, rel=0.03)
    assert pool.queued_tokens == 0.0
    assert pool.oldest_wait_s == 0.0


def test_new_replicas_start_cold():
    pool = set_target(FluidPool(spec=SPEC, ready=1), 3)
    assert (pool.ready, pool.target) == (1, 3)
    assert flow(pool, seconds=19.75, rate=0.0).ready == 1
    assert flow(pool, seconds=20.0, rate=0.0).ready == 3


def test_pending_replicas_go_before_ready_ones():
    pool = set_target(FluidPool(spec=SPEC, ready=2), 4)
    assert set_target(pool, 3).ready == 2
    assert set_target(pool, 1) == FluidPool(spec=SPEC, ready=1)


def test_the_oldest_wait_is_that_of_the_head():
    pool = flow(FluidPool(spec=SPEC, ready=0), seconds=10.0, rate=100.0)
    assert pool.oldest_wait_s == pytest.approx(9.75)
    assert pool.queued_tokens == pytest.approx(1000.0)


def test_without_arrivals_everything_finishes():
    pool = flow(FluidPool(spec=SPEC, ready=1), seconds=20.0, rate=2000.0)
    pool = flow(pool, seconds=200.0, rate=0.0)
    assert pool.in_flight_tokens == 0.0
    assert pool.finished_tokens == pytest.approx(pool.arrived_tokens)
