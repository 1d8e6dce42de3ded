from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.history import History, held, minute_grid, recent_grid, remember


def history_of(points, *, recent_s=1800.0, keep_s=86_400.0):
    history = History()
    for time_s, value in points:
        history = remember(history, time_s, value, recent_s=recent_s, keep_s=keep_s)
    return history


def test_a_report_seen_twice_is_one_point():
    history = history_of([(1.0, 10.0)])
    assert history_of([(1.0, 10.0), (1.0, 99.0), (0.5, 99.0)]) == history


@given(
    st.lists(st.floats(min_value=0.1, max_value=300.0), min_size=1, max_size=200),
    st.floats(min_value=60.0, max_value=600.0),
    st.floats(min_value=600.0, max_value=3600.0),
)
def test_history_is_bounded_in_time(gaps, recent_s, keep_s):
    times = np.cumsum(gaps)
    history = history_of([(float(t), 1.0) for t in times], recent_s=recent_s, keep_s=keep_s)
    assert history.newest_s - history.points[0][0] <= recent_s
    assert len(history.minutes) <= keep_s / 60.0 + 1
    assert all(a[0] < b[0] for a, b in pairwise(history.minutes))


def test_a_minute_is_the_mean_of_its_points_and_a_gap_is_no_minute():
    history = history_of([(0.0, 10.0), (59.0, 30.0), (61.0, 7.0), (200.0, 5.0), (300.0, 0.0)])
    assert history.minutes == ((0, 20.0), (1, 7.0), (3, 5.0))
    first, grid = minute_grid(history)
    assert first == 0
    np.testing.assert_equal(grid, [20.0, 7.0, np.nan, 5.0])


def test_a_grid_ends_at_the_newest_point_and_holds_over_gaps():
    history = history_of([(0.0, 4.0), (12.0, 8.0), (14.0, 10.0), (50.0, 0.0)])
    np.testing.assert_allclose(recent_grid(history, step_s=10.0), [4.0, 4.0, 9.0, 9.0, 9.0, 0.0])


def test_zero_traffic_is_data():
    assert recent_grid(history_of([(0.0, 5.0), (10.0, 0.0)]), step_s=10.0)[-1] == 0.0


def test_nothing_but_zero_traffic_is_data_in_minutes_too():
    history = history_of([(float(t), 0.0) for t in range(200)])
    assert history.minutes == ((0, 0.0), (1, 0.0), (2, 0.0))


def test_missing_values_hold_the_last_known_one():
    np.testing.assert_equal(held(np.array([1.0, np.nan, np.nan, 2.0])), [1.0, 1.0, 1.0, 2.0])
