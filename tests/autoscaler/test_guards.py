import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.guards import clamp, fault, held, limit_step, since

ints = st.integers(min_value=-100, max_value=100)


@given(ints, st.integers(0, 10), st.integers(10, 20))
def test_clamp_keeps_the_bounds(value, minimum, maximum):
    assert minimum <= clamp(value, minimum=minimum, maximum=maximum) <= maximum


@given(ints, ints, st.integers(1, 5), st.integers(1, 5))
def test_a_step_is_limited_and_points_the_right_way(current, desired, up, down):
    value = limit_step(current, desired, up=up, down=down)
    assert -down <= value - current <= up
    assert abs(desired - value) <= abs(desired - current)


@pytest.mark.parametrize(
    ("observed_s", "numbers", "expected"),
    [
        (None, (), "missing"),
        (89.0, (1.0,), "stale"),
        (111.0, (1.0,), "stale"),
        (math.nan, (1.0,), "stale"),
        (100.0, (math.nan,), "not a number"),
        (100.0, (math.inf,), "not a number"),
        (100.0, (-1.0,), "not a number"),
        (91.0, (0.0,), None),
        (101.0, (0.0,), None),
    ],
)
def test_unusable_observations_have_a_reason(observed_s, numbers, expected):
    assert fault(observed_s, numbers, now_s=100.0, stale_after_s=10.0) == expected


def test_a_delay_needs_the_condition_without_a_break():
    mark = since(None, holds=True, now_s=1.0)
    mark = since(mark, holds=True, now_s=4.0)
    assert held(mark, 3.0, now_s=4.0)
    mark = since(mark, holds=False, now_s=5.0)
    mark = since(mark, holds=True, now_s=6.0)
    assert not held(mark, 3.0, now_s=8.0)
