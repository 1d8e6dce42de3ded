import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.params import TierParams
from autoscaler.saturation import pressure, retry_after_s
from autoscaler.view import PoolView
from tests.autoscaler.build import load, pool, size

TIERS = TierParams()
NOW = 100.0


def press(*, maximum=2, pending_since_s=None, of_size=None, **of_load):
    view = PoolView(
        now_s=NOW,
        pool=pool(minimum=0, maximum=maximum),
        size=size(NOW, **(of_size or {})),
        load=load(NOW, **of_load),
    )
    result = pressure(view, pending_since_s=pending_since_s, params=TIERS)
    assert result is not None
    return result


def test_saturation_is_the_larger_of_fullness_and_waiting():
    assert press(flight=6000.0, queued=2000.0).saturation == pytest.approx(1.0)
    assert press(flight=6000.0, wait=20.0).saturation == pytest.approx(2.0)
    assert press(flight=6000.0, of_size={"target": 2}).saturation == pytest.approx(0.375)


def test_pending_replicas_do_not_serve_yet():
    assert press(flight=8000.0, of_size={"target": 2, "pending": 1}).saturation == 1.0


@pytest.mark.parametrize(
    ("of_size", "wait", "since_s", "gate"),
    [
        ({"target": 1}, 0.0, None, ""),
        ({"target": 2}, 0.0, None, "the main pool is at its maximum"),
        ({"target": 2, "pending": 1}, 0.0, 90.0, ""),
        ({"target": 2, "pending": 1}, 10.0, 90.0, "requests wait longer than the limit"),
        ({"target": 2, "pending": 1}, 0.0, 69.0, "pending replicas are overdue"),
        ({"target": 1, "ready": 0, "pending": 1}, 50.0, 90.0, ""),
        ({"target": 1, "ready": 0, "pending": 1}, 50.0, 69.0, "pending replicas are overdue"),
    ],
)
def test_the_gate_opens_when_replicas_cannot_help(of_size, wait, since_s, gate):
    assert press(of_size=of_size, wait=wait, pending_since_s=since_s).gate == gate


def test_waiting_for_the_first_replica_is_a_cold_start_not_an_overload():
    starting = {"target": 1, "ready": 0, "pending": 1}
    cold = press(of_size=starting, flight=0.0, queued=400.0, wait=50.0, pending_since_s=90.0)
    assert cold.saturation == pytest.approx(0.05)
    overdue = press(of_size=starting, flight=0.0, queued=400.0, wait=50.0, pending_since_s=60.0)
    assert overdue.saturation == pytest.approx(5.0)


def test_unknown_size_or_load_is_no_pressure_at_all():
    view = PoolView(now_s=NOW, pool=pool(), size=None, load=load(NOW))
    assert pressure(view, pending_since_s=None, params=TIERS) is None


def test_retry_after_is_backlog_over_capacity_in_whole_seconds():
    assert retry_after_s(20_500.0, 1000.0, params=TIERS) == 21
    assert retry_after_s(0.0, 1000.0, params=TIERS) == 1
    assert retry_after_s(1e9, 1000.0, params=TIERS) == 120
    assert retry_after_s(5.0, 0.0, params=TIERS) == 120
    assert retry_after_s(math.nan, 1000.0, params=TIERS) == 120


@given(st.floats(0.0, 1e12), st.floats(0.0, 1e12), st.floats(0.0, 1e6))
def test_retry_after_is_bounded_and_monotone(queued, more, capacity):
    short = retry_after_s(queued, capacity, params=TIERS)
    long = retry_after_s(queued + more, capacity, params=TIERS)
    assert 1 <= short <= long <= 120
