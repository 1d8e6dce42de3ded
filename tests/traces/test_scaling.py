"""What scaling changes, and what it leaves as it was."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import InputError
from cluster.priority import Priority
from cluster.traces import scaling
from cluster.traces.describe import describe
from cluster.traces.request import TraceRequest
from cluster.traces.synthetic_text import parse_synthetic

TRACE = tuple(
    parse_synthetic(
        "gamma:rate=5,cv=2,count=2000,isl=lognormal(300,1),osl=exponential(50),prefix=0.5:128:4"
    )
)


@st.composite
def traces(draw):
    gaps = draw(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
    lengths = st.integers(1, 10_000)
    return [
        TraceRequest(at, draw(lengths), draw(lengths), blocks=(n, -n), block_tokens=16)
        for n, at in enumerate(itertools.accumulate(gaps))
    ]


def rising(requests):
    return all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(requests))


@given(traces(), st.floats(0.01, 100.0))
def test_a_rate_scaled_divides_the_duration(trace, factor):
    found = list(scaling.scale_rate(trace, factor))
    assert found[-1].arrival_s == pytest.approx(trace[-1].arrival_s / factor)
    assert [r[1:] for r in found] == [r[1:] for r in trace]
    assert rising(found)
    back = list(scaling.scale_time(found, factor))
    assert [r.arrival_s for r in back] == pytest.approx([r.arrival_s for r in trace])


@given(traces(), st.floats(0.1, 5.0), st.integers(0, 99))
def test_samples_rise_and_repeat_under_a_seed(trace, share, seed):
    found = list(scaling.sample(trace, share, seed=seed))
    assert found == list(scaling.sample(trace, share, seed=seed))
    assert rising(found)
    assert len(trace) * int(share) <= len(found) <= len(trace) * (int(share) + 1)


@pytest.mark.parametrize("share", [0.3, 1.0, 2.5])
def test_samples_have_their_share_and_reuse_what_the_trace_does(share):
    found = list(scaling.sample(TRACE, share, seed=3))
    assert len(found) == pytest.approx(share * len(TRACE), rel=0.1)
    reused = describe(TRACE).reused_blocks
    assert describe(found).reused_blocks == pytest.approx(reused, abs=0.03)
    if share == 1.0:
        assert tuple(found) == TRACE


def test_cuts_hold_their_start_and_not_their_end():
    trace = [TraceRequest(float(t), 1, 1) for t in range(10)]
    found = list(scaling.cut(trace, start_s=2.0, end_s=5.0))
    assert [r.arrival_s for r in found] == [0.0, 1.0, 2.0]
    assert len(list(scaling.cut(trace, start_s=4.0))) == 6


def test_a_cut_reads_no_further_than_its_end():
    endless = (TraceRequest(float(t), 1, 1) for t in itertools.count())
    assert len(list(scaling.cut(endless, start_s=2.0, end_s=5.0))) == 3


def test_limits():
    assert tuple(scaling.limit(TRACE, 7)) == TRACE[:7]


@given(traces(), st.floats(0.01, 10.0), st.integers(1, 500))
def test_lengths_scaled_stay_within_bounds(trace, factor, most):
    found = list(scaling.scale_lengths(trace, prompt=factor, output=factor, max_prompt=most))
    for old, new in zip(trace, found, strict=True):
        assert 1 <= new.prompt_tokens <= most
        assert new.output_tokens == max(1, round(old.output_tokens * factor))
        if new.prompt_tokens < old.prompt_tokens:
            assert len(new.blocks) * 16 <= new.prompt_tokens
        assert old.blocks[: len(new.blocks)] == new.blocks


def test_priorities_have_their_shares():
    shares = {Priority.VIP: 0.1, Priority.STANDARD: 0.6, Priority.BATCH: 0.3}
    found = list(scaling.assign_priorities(TRACE, shares, seed=5))
    assert found == list(scaling.assign_priorities(TRACE, shares, seed=5))
    for name, share in shares.items():
        count = sum(r.priority is name for r in found)
        assert count == pytest.approx(share * len(TRACE), rel=0.15)
    only = scaling.assign_priorities(TRACE, {Priority.VIP: 0.0, Priority.BATCH: 1.0}, seed=0)
    assert all(r.priority is Priority.BATCH for r in only)


def test_repeats_go_on_in_time_at_the_same_rate():
    found = list(scaling.repeat(TRACE, 5000))
    assert len(found) == 5000
    assert tuple(found[:2000]) == TRACE
    assert rising(found)
    assert describe(found).rate == pytest.approx(describe(TRACE).rate, rel=0.1)
    assert describe(found[:4000]).reused_blocks == pytest.approx(describe(TRACE).reused_blocks)
    late = list(scaling.repeat(TRACE, 2001, period_s=1e6))
    assert late[-1].arrival_s == pytest.approx(1e6 + TRACE[0].arrival_s)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: scaling.scale_rate(TRACE, 0.0),
        lambda: scaling.scale_time(TRACE, float("inf")),
        lambda: scaling.sample(TRACE, float("nan"), seed=0),
        lambda: scaling.cut(TRACE, start_s=3.0, end_s=3.0),
        lambda: scaling.limit(TRACE, 0),
        lambda: scaling.scale_lengths(TRACE, prompt=-1.0),
        lambda: scaling.scale_lengths(TRACE, max_output=0),
        lambda: scaling.assign_priorities(TRACE, {Priority.VIP: 0.5}, seed=0),
        lambda: scaling.repeat(iter(TRACE), 5),
        lambda: scaling.repeat(TRACE, 0),
        lambda: list(scaling.repeat([], 5)),
        lambda: list(scaling.repeat(TRACE[:1], 5)),
        lambda: list(scaling.repeat(TRACE, 5000, period_s=1.0)),
    ],
)
def test_what_makes_no_sense_is_refused(ask):
    with pytest.raises(InputError):
        ask()
