"""Traces made up have the rate, variation, lengths and prefixes asked for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConfigError, InputError, UnknownNameError
from cluster.traces.arrivals import ArrivalProcess, Phase, constant, gamma, poisson, weibull
from cluster.traces.describe import describe
from cluster.traces.gaps import GammaGaps, WeibullGaps
from cluster.traces.lengths import (
    Empirical,
    Exponential,
    Fixed,
    Independent,
    Lognormal,
    Uniform,
)
from cluster.traces.synthetic import Prefixes, SyntheticTrace
from cluster.traces.synthetic_text import parse_synthetic

LENGTHS = Independent(Fixed(100), Fixed(10))


@pytest.mark.parametrize(
    ("process", "cv"),
    [
        (poisson(rate=8.0), 1.0),
        (gamma(rate=8.0, cv=3.0), 3.0),
        (gamma(rate=8.0, cv=0.3), 0.3),
        (weibull(rate=8.0, cv=2.0), 2.0),
        (weibull(rate=8.0, cv=0.5), 0.5),
        (constant(rate=8.0), 0.0),
    ],
)
def test_rate_and_variation(process, cv):
    trace = SyntheticTrace(arrivals=process, lengths=LENGTHS, count=40_000)
    found = describe(trace)
    assert found.requests == 40_000
    assert found.rate == pytest.approx(8.0, rel=0.05)
    assert found.gap_cv == pytest.approx(cv, rel=0.1, abs=1e-6)
    assert not trace.skipped


def test_phases_have_their_rates_and_silences():
    process = ArrivalProcess(
        (Phase(100.0, 50.0), Phase(50.0, 0.0), Phase(10.0, 400.0), Phase(5.0, 0.0))
    )
    times = np.concatenate(list(process.times(np.random.default_rng(1))))
    counts = np.histogram(times, [0.0, 100.0, 150.0, 160.0, 165.0])[0]
    assert counts[[1, 3]].tolist() == [0, 0]
    assert counts[[0, 2]] == pytest.approx([5000, 4000], rel=0.1)
    assert process.expected_requests == 9000
    assert process.duration_s == 165.0


@given(
    st.lists(
        st.tuples(st.floats(0.1, 50.0), st.sampled_from([0.0, 0.5, 20.0]), st.floats(0.1, 8.0)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 9),
)
def test_arrivals_never_fall_and_end_with_the_phases(told, seed):
    phases = tuple(Phase(duration, rate, GammaGaps(cv)) for duration, rate, cv in told)
    process = ArrivalProcess((*phases, Phase(1.0, 5.0)))
    times = [t for block in process.times(np.random.default_rng(seed)) for t in block]
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert all(0.0 <= t <= process.duration_s * (1 + 1e-12) for t in times)


def test_an_endless_last_phase_follows_others():
    process = ArrivalProcess((Phase(10.0, 0.0), Phase(math.inf, 2.0)))
    trace = list(SyntheticTrace(arrivals=process, lengths=LENGTHS, count=5000))
    assert trace[0].arrival_s > 10.0
    assert trace[-1].arrival_s == pytest.approx(2510.0, rel=0.1)


def test_the_same_seed_makes_the_same_trace():
    def made(**changes):
        fields = {"arrivals": poisson(rate=5.0), "lengths": LENGTHS, "count": 500}
        return list(SyntheticTrace(**fields | changes))

    assert made() == made()
    assert made() != made(seed=1)
    longer = made(lengths=Independent(Lognormal(500, 1.0), Fixed(3)))
    assert [r.arrival_s for r in longer] == [r.arrival_s for r in made()]


@pytest.mark.parametrize(
    ("law", "mean", "cv"),
    [
        (Fixed(7), 7.0, 0.0),
        (Uniform(10, 30), 20.0, 0.303),
        (Lognormal(1000, 1.5), 1000.0, 1.5),
        (Lognormal(1000, 0.0), 1000.0, 0.0),
        (Exponential(200), 200.0, 1.0),
        (Exponential(1), 1.0, 0.0),
    ],
)
def test_laws_of_lengths(law, mean, cv):
    drawn = law.draw(np.random.default_rng(2), 50_000)
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(mean, rel=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.1, abs=1e-9)


def test_lengths_of_another_trace_come_in_its_pairs():
    seen = list(parse_synthetic("poisson:rate=1,count=50,isl=uniform(1,999),osl=uniform(1,99)"))
    drawn = SyntheticTrace(arrivals=poisson(rate=1.0), lengths=Empirical.of(seen), count=300)
    pairs = {r[1:3] for r in seen}
    assert {r[1:3] for r in drawn} <= pairs
    with pytest.raises(InputError):
        Empirical.of([])


def test_prefixes_are_shared_within_groups():
    trace = parse_synthetic("poisson:rate=9,count=4000,isl=100,osl=1,prefix=0.5:64:3")
    found = list(trace)
    firsts = [r.blocks[:4] for r in found if r.blocks[0] < 0]
    assert len(set(firsts)) == 3
    assert len(firsts) == pytest.approx(2000, rel=0.1)
    assert all(len(r.blocks) == 6 and r.block_tokens == 16 for r in found)
    # Half of the requests find 4 of their 6 blocks, but for the first of each group.
    assert describe(found).reused_blocks == pytest.approx(1 / 3, rel=0.1)
    own = [block for r in found for block in r.blocks if block >= 0]
    assert len(own) == len(set(own))
    short = list(parse_synthetic("poisson:rate=9,count=9,isl=40,osl=1,prefix=1:64:1"))
    assert {r.blocks for r in short} == {short[0].blocks}
    assert len(short[0].blocks) == 2


def test_texts():
    trace = parse_synthetic(" poisson: rate=5, duration=10min, isl=1024, osl=lognormal(256, 1) ")
    assert trace.duration_s == 600.0
    assert trace.arrivals == poisson(rate=5.0)
    assert trace.lengths == Independent(Fixed(1024), Lognormal(256, 1))
    trace = parse_synthetic("weibull:rate=5,cv=2,count=1e3,seed=4,isl=uniform(1,9),osl=fixed(3)")
    assert (trace.count, trace.seed) == (1000, 4)
    assert trace.arrivals == ArrivalProcess((Phase(math.inf, 5.0, WeibullGaps(2.0)),))
    trace = parse_synthetic(
        "piecewise:phases=1h@5+30s@0+10@40,isl=1,osl=exponential(9),prefix=0.5:512:20"
    )
    assert trace.arrivals == ArrivalProcess((Phase(3600, 5), Phase(30, 0), Phase(10, 40)))
    assert trace.prefixes == Prefixes(share=0.5, tokens=512, groups=20)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poisson:rate=-3,isl=3,osl=3,count=1", "field 'rate': '-3' is not a number"),
        ("poisson:rate=0,isl=3,osl=3,count=1", "above 0 requests/s"),
        ("poisson:rate=nan,isl=3,osl=3,count=1", "field 'rate'"),
        ("poisson:rate=3,isl=3,count=1", "field 'osl': is missing"),
        ("poisson", "field 'rate': is missing"),
        ("poisson:rate=3,isl=3,osl=3", "never end: give a duration or a count"),
        ("poisson:rate=3,isl=3,osl=3,count=0", "at least 1"),
        ("poisson:rate=3,isl=3,osl=3,count=1.5", "not a whole number"),
        ("poisson:rate=3,isl=3,osl=3,duration=0s", "longer than 0 s"),
        ("poisson:rate=3,isl=3,osl=3,duration=5 weeks", "'5 weeks' is not a duration"),
        ("poisson:rate=3,isl=3,osl=3,count=1,rate=4", "given twice"),
        ("poisson:rate=3,isl,osl=3,count=1", "'isl' is not KEY=VALUE"),
        ("poisson:rate=3,isl=0,osl=3,count=1", "1 to 10^9"),
        ("poisson:rate=3,isl=pareto(3),osl=3,count=1", "no law of lengths"),
        ("poisson:rate=3,isl=lognormal(3),osl=3,count=1", "write lognormal(mean,cv)"),
        ("poisson:rate=3,isl=lognormal(3,osl=3,count=1", "no law of lengths"),
        ("poisson:rate=3,isl=uniform(9,3),osl=3,count=1", "swap the two"),
        ("gamma:rate=3,cv=0,isl=3,osl=3,count=1", "use constant arrivals"),
        ("piecewise:phases=60,isl=3,osl=3", "DURATION@RATE"),
        ("piecewise:phases=60s@0,isl=3,osl=3", "above 0 requests/s"),
        ("poisson:rate=3,isl=3,osl=3,count=1,prefix=0.5", "SHARE:TOKENS:GROUPS"),
        ("poisson:rate=3,isl=3,osl=3,count=1,prefix=2:64:1", "within 0 to 1"),
        ("poisson:rate=3,isl=3,osl=3,count=1,prefix=1:8:1", "at least one block"),
        ("poisson:rate=3,isl=3,osl=3,count=1,prefix=1:64:0", "at least 1"),
    ],
)
def test_wrong_texts_say_what_is_wrong(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_synthetic(text)
    assert says in str(caught.value)
    assert text in str(caught.value)


def test_unknown_names_list_the_known():
    with pytest.raises(UnknownNameError, match="Did you mean poisson"):
        parse_synthetic("poison:rate=3")
    with pytest.raises(UnknownNameError, match="Known: count, cv, duration, isl, osl, prefix"):
        parse_synthetic("gamma:rate=3,shape=3")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: Phase(0.0, 1.0),
        lambda: Phase(1.0, math.inf),
        lambda: ArrivalProcess(()),
        lambda: ArrivalProcess((Phase(math.inf, 1.0), Phase(1.0, 1.0))),
        lambda: SyntheticTrace(arrivals=poisson(rate=1), lengths=LENGTHS, count=1, seed=-1),
        lambda: Lognormal(5, math.nan),
        lambda: WeibullGaps(1000.0),
    ],
)
def test_what_makes_no_sense_is_refused(ask):
    with pytest.raises(InputError):
        ask()
