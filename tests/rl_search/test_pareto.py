from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rl_search.pareto import frontier

points = st.lists(
    st.tuples(st.integers(0, 20).map(float), st.integers(0, 20).map(float)), min_size=1, max_size=60
)


@given(points)
def test_the_frontier_is_what_comparing_all_pairs_finds(found):
    x, y = np.array(found).T
    chosen = frontier(x, y)
    kept = {(x[i], y[i]) for i in chosen}
    unbeaten = {
        (a, b)
        for a, b in found
        if not any((c >= a and d > b) or (c > a and d >= b) for c, d in found)
    }
    assert kept == unbeaten
    assert (np.diff(x[chosen]) > 0).all()
    assert (np.diff(y[chosen]) < 0).all()


def test_no_points_have_an_empty_frontier():
    assert len(frontier(np.array([]), np.array([]))) == 0
