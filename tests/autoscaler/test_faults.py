"""What holds of faults whatever is observed."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.reasons import Action
from tests.autoscaler.build import of
from tests.autoscaler.faulty import faulty, replica, run, seen, starts

names = st.sampled_from(["a", "b", "c", "d"])
observations = st.builds(
    lambda name, steps, owed, age, fault: (name, steps, owed, age, fault),
    names,
    st.integers(0, 3),
    st.floats(0.0, 60.0) | st.just(math.nan),
    st.none() | st.floats(0.0, 60.0),
    st.sampled_from(["", "", "", "XID 79"]),
)
ticks = st.lists(
    st.tuples(
        st.floats(0.5, 8.0),
        st.lists(observations, max_size=4, unique_by=lambda item: item[0]),
        st.lists(names, max_size=3, unique=True),
        st.integers(0, 5),
        st.sampled_from(["", "8 GPU"]),
    ),
    min_size=1,
    max_size=25,
)


def whatever(items):
    now_s, found = 0.0, []
    for gap_s, replicas, coming, target, unmet in items:
        now_s += gap_s
        up = [
            replica(name, now_s, steps=steps, owed=owed, age=age, fault=fault)
            for name, steps, owed, age, fault in replicas
        ]
        there = {r.replica_id for r in up}
        begun = starts(now_s, *(n for n in coming if n not in there), since_s=now_s - 50.0)
        found.append(seen(now_s, up, target=target, starting=begun, unmet=unmet))
    return found


@given(ticks)
@settings(max_examples=80, deadline=None)
def test_restarts_are_few_have_reasons_and_name_who_is_there(items):
    p = faulty(start_limit_s=40.0)
    snapshots = whatever(items)
    results = run(p, snapshots)
    under_way: dict[str, dict[str, float]] = {"start": {}, "replica": {}}
    for snapshot, result in zip(snapshots, results, strict=True):
        (pool,) = snapshot.pools
        there = {r.replica_id for r in (*pool.replicas, *pool.starting)}
        ordered = of([result], Action.RESTART)
        assert all(d.subject in there and d.reason and d.numbers for d in ordered)
        assert all(math.isfinite(n) for d in result.decisions for _, n in d.numbers)
        assert len({d.subject for d in ordered}) == len(ordered)
        for kind, listed in (("start", pool.starting), ("replica", pool.replicas)):
            names = {r.replica_id for r in listed}
            under_way[kind] = {
                name: at_s
                for name, at_s in under_way[kind].items()
                if name in names and snapshot.now_s - at_s < p.faults.retry_s
            }
            new = {d.subject for d in ordered} & names
            under_way[kind] |= dict.fromkeys(new, snapshot.now_s)
            assert len(under_way[kind]) <= p.faults.max_at_once
    assert results == run(p, snapshots), "the same again"


@given(ticks)
@settings(max_examples=80, deadline=None)
def test_who_steps_or_owes_nothing_is_never_restarted(items):
    snapshots = whatever(items)
    results = run(faulty(start_limit_s=1e6), snapshots)
    before: dict[str, int] = {}
    for snapshot, result in zip(snapshots, results, strict=True):
        ordered = {d.subject for d in of([result], Action.RESTART)}
        for r in snapshot.pools[0].replicas:
            owes = math.isfinite(r.owed_s) and r.owed_s > 0
            steps = before.get(r.replica_id, r.steps) != r.steps
            if not r.device_fault and not math.isnan(r.observed_s) and (steps or not owes):
                assert r.replica_id not in ordered
        before = {r.replica_id: r.steps for r in snapshot.pools[0].replicas}


@given(ticks)
@settings(max_examples=60, deadline=None)
def test_what_is_asked_for_stays_within_bounds_whatever_fails(items):
    p = faulty(minimum=1, maximum=3, failed_starts=1)
    for result in run(p, whatever(items)):
        for decision in of([result], Action.SCALE):
            assert 0 <= decision.value <= 3
