from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.sharding_states import Env, State
from rl_search.dims_front import Price, Stages, best_within

prices = st.tuples(
    st.integers(0, 9).map(float), st.integers(0, 9).map(float), st.integers(0, 5).map(float)
).map(lambda drawn: Price(*drawn))
MIDDLE = (Env(State.FULL, State.FULL), Env(State.FULL, State.SHARDED))


@st.composite
def chains(draw: st.DrawFn) -> Stages:
    start = Env(State.FULL)
    ends = [(start,), *[MIDDLE] * draw(st.integers(1, 4)), (start,)]
    ways = []
    for before, after in pairwise(ends):
        count = draw(st.integers(1, 3))
        stage = {
            env: tuple((code, draw(st.sampled_from(after)), draw(prices)) for code in range(count))
            for env in before
        }
        ways.append(stage)
    return Stages(start=start, ways=tuple(ways))


def every_walk(kind: Stages) -> list[tuple[float, float, float]]:
    found = [(kind.start, 0.0, 0.0, 0.0)]
    for stage in kind.ways:
        found = [
            (then, s + p.seconds, b + p.bytes_, max(w, p.width))
            for env, s, b, w in found
            for _, then, p in stage.get(env, ())
        ]
    return [(s, b, w) for env, s, b, w in found if env == kind.start]


@given(st.lists(chains(), min_size=1, max_size=2), st.integers(0, 60), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_the_front_holds_the_fastest_walk_that_fits(kinds, room, token_bytes):
    walks = [
        (sum(s for s, _, _ in mix), sum(b for _, b, _ in mix), max(w for _, _, w in mix))
        for mix in product(*map(every_walk, kinds))
    ]
    fitting = [s for s, b, w in walks if b + w * token_bytes <= room]
    found = best_within(kinds, room=float(room), token_bytes=float(token_bytes), width=0.0)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.seconds == min(fitting)
        assert found.bytes_ + found.width * token_bytes <= room
