import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.leak_params import LeakParams
from autoscaler.leaks import note, slope, worst_leak
from autoscaler.snapshot import ReplicaObservation
from cluster.errors import ConfigError

GIB = 2.0**30
PARAMS = LeakParams(warmup_s=60.0, window_s=600.0, slope_bytes_per_h=GIB)
STEP_S = 10.0
LIMIT = GIB / 3600.0  # bytes per second
WINDOW = LIMIT * PARAMS.window_s  # what a leak at the limit gains in a window


def seen(host=math.nan, device=math.nan, *, name="a"):
    return ReplicaObservation(
        replica_id=name,
        observed_s=0.0,
        running=0,
        waiting=0,
        kv_usage=0.0,
        host_bytes=host,
        device_bytes=device,
    )


def watched(values, *, params=PARAMS, kind="host"):
    """The leak found after each measurement."""
    tracks, found = (), []
    for i, value in enumerate(values):
        now_s = i * STEP_S
        tracks = note(tracks, [seen(**{kind: value})], now_s=now_s, params=params)
        found.append(worst_leak(tracks, now_s=now_s, params=params))
    return found


def growing(rate, *, steps=140, start=4 * GIB):
    return [start + rate * i * STEP_S for i in range(steps)]


@pytest.mark.parametrize("kind", ["host", "device"])
def test_steady_growth_is_a_leak_once_it_has_gone_on_for_the_window(kind):
    found = watched(growing(2 * LIMIT), kind=kind)
    first = next(i for i, leak in enumerate(found) if leak)
    assert 0.9 * PARAMS.window_s <= first * STEP_S - PARAMS.warmup_s <= PARAMS.window_s
    leak = found[-1]
    assert leak.reason.startswith(f"its {kind} memory grew by ")
    assert dict(leak.numbers)["slope_bytes_per_h"] == pytest.approx(2 * GIB)
    assert not leak.urgent


def test_growth_below_the_limit_is_none():
    assert not any(watched(growing(0.9 * LIMIT)))


def test_growth_of_the_warm_up_does_not_count():
    warm = growing(1000 * LIMIT, steps=7)
    assert not any(watched(warm + [warm[-1]] * 140))


def test_a_cache_that_fills_up_is_no_leak():
    assert not any(watched([4 * GIB * (1 - math.exp(-i / 30)) for i in range(300)]))


def test_a_step_is_no_leak():
    assert not any(watched([GIB] * 60 + [2 * GIB] * 140))


def test_what_nobody_measured_is_no_leak():
    assert not any(watched([math.nan] * 200))


def test_a_ceiling_crossed_for_a_while_is_urgent():
    params = replace(PARAMS, host_ceiling_bytes=5 * GIB)
    found = watched([4 * GIB] * 10 + [6 * GIB] + [4 * GIB] * 5 + [6 * GIB] * 5, params=params)
    assert [bool(leak) for leak in found] == [False] * 19 + [True] * 2
    assert found[-1].urgent
    assert found[-1].reason == "its host memory, 6 GiB, is above the ceiling of 5 GiB"


def test_a_ceiling_below_what_a_replica_needs_replaces_nobody():
    assert not any(watched([6 * GIB] * 200, params=replace(PARAMS, host_ceiling_bytes=5 * GIB)))


def test_a_leak_that_will_reach_its_ceiling_soon_is_urgent_and_says_when():
    params = replace(PARAMS, host_ceiling_bytes=4 * GIB + 3 * WINDOW)
    leak = next(filter(None, watched(growing(2 * LIMIT), params=params)))
    left_s = dict(leak.numbers)["to_ceiling_s"]
    assert 0 < left_s < PARAMS.window_s
    assert leak.urgent
    assert "min from its ceiling" in leak.reason


def test_the_urgent_one_comes_first_then_the_fastest():
    tracks = ()
    for i in range(140):
        replicas = [
            seen(GIB + rate * LIMIT * i * STEP_S, name=name)
            for name, rate in (("slow", 2.0), ("fast", 4.0), ("steady", 0.0))
        ]
        tracks = note(tracks, replicas, now_s=i * STEP_S, params=PARAMS)
    assert worst_leak(tracks, now_s=1400.0, params=PARAMS).replica_id == "fast"
    tracks = note(tracks, [seen(GIB, name="slow")], now_s=1400.0, params=PARAMS)
    assert [track.replica_id for track in tracks] == ["slow"], "those gone are forgotten"


def test_a_slope_is_not_moved_by_outliers():
    points = tuple((float(i), 5.0 * i if i % 4 else 1e9) for i in range(40))
    assert slope(points) == pytest.approx(5.0, rel=0.5)


@given(st.lists(st.floats(-1.0, 1.0), min_size=150, max_size=150))
def test_bounded_noise_around_a_constant_is_never_a_leak(noise):
    values = [10 * GIB + 0.07 * WINDOW * each for each in noise]
    assert not any(watched(values))


@given(
    st.floats(1.5, 100.0),
    st.lists(st.floats(-1.0, 1.0), min_size=150, max_size=150),
    st.floats(0.0, 100.0),
)
def test_a_steady_leak_above_the_limit_is_always_found(rate, noise, start):
    line = growing(rate * LIMIT, steps=150, start=start * GIB)
    values = [value + 0.05 * WINDOW * each for value, each in zip(line, noise, strict=True)]
    assert any(watched(values))


@pytest.mark.parametrize(
    "wrong", [{"window_s": 0.0}, {"slope_bytes_per_h": -1.0}, {"host_ceiling_bytes": 0.0}]
)
def test_impossible_parameters_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LeakParams(**wrong)
