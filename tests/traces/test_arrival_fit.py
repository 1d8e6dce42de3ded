"""A fit finds the law that made the arrivals; a description counts what is there."""

from __future__ import annotations

import numpy as np
import pytest

from cluster.errors import InputError
from cluster.traces.arrival_fit import fit_arrivals, fit_windows, fitted_process
from cluster.traces.arrivals import gamma, poisson, weibull
from cluster.traces.describe import describe
from cluster.traces.gaps import ConstantGaps, ExponentialGaps, GammaGaps, WeibullGaps
from cluster.traces.lengths import Fixed, Independent
from cluster.traces.request import TraceRequest
from cluster.traces.synthetic import SyntheticTrace
from cluster.traces.synthetic_text import parse_synthetic


def made(process, count=20_000):
    lengths = Independent(Fixed(10), Fixed(10))
    return list(SyntheticTrace(arrivals=process, lengths=lengths, count=count, seed=11))


def at(*times):
    return [TraceRequest(time, 10, 10) for time in times]


@pytest.mark.parametrize(
    ("process", "name", "cv"),
    [
        (poisson(rate=4.0), "exponential", 1.0),
        (gamma(rate=4.0, cv=2.5), "gamma", 2.5),
        (gamma(rate=4.0, cv=0.4), "gamma", 0.4),
        (weibull(rate=4.0, cv=2.5), "weibull", 2.5),
        (weibull(rate=4.0, cv=0.4), "weibull", 0.4),
    ],
)
def test_a_fit_recovers_the_law(process, name, cv):
    fit = fit_arrivals(made(process))
    assert fit.gaps.name == name
    assert fit.gaps.cv == pytest.approx(cv, rel=0.05)
    assert fit.cv == pytest.approx(cv, rel=0.1)
    assert fit.rate == pytest.approx(4.0, rel=0.06)
    assert fit.ks < 1.63 / np.sqrt(fit.requests)  # the 1 % bound
    assert min(fit.aic, key=fit.aic.__getitem__) == name
    again = describe(made(fit.process))
    assert again.rate == pytest.approx(4.0, rel=0.1)


def test_a_coarse_clock_hides_no_poisson_arrivals():
    ticks = [r._replace(arrival_s=r.arrival_s // 3 * 3) for r in made(poisson(rate=4.0))]
    fit = fit_arrivals(ticks)
    assert fit.gaps.cv == pytest.approx(1.0, abs=0.05)


def test_windows_are_fitted_each_by_its_own_law():
    told = "piecewise:phases=300s@20+100s@0+300s@60,isl=10,osl=10"
    trace = list(parse_synthetic(told))
    fits = fit_windows(trace, window_s=100.0)
    assert [round(w.start_s) for w in fits] == [0, 100, 200, 300, 400, 500, 600]
    assert sum(w.requests for w in fits) == len(trace)
    assert fits[3].fit is None
    assert fits[0].fit is not None
    assert fits[0].fit.rate == pytest.approx(20.0, rel=0.1)
    process = fitted_process(trace, window_s=100.0)
    assert process.expected_requests == pytest.approx(len(trace))
    times = np.concatenate(list(process.times(np.random.default_rng(0))))
    assert not ((times > 300.0) & (times < 400.0)).any()
    assert len(times) == pytest.approx(len(trace), rel=0.05)


@pytest.mark.parametrize("trace", [[], at(1.0), at(1.0, 2.0), at(3.0, 3.0, 3.0, 3.0)])
def test_too_few_arrivals_are_refused(trace):
    with pytest.raises(InputError, match="3 or more"):
        fit_arrivals(trace)


def test_nonsense_windows_are_refused():
    with pytest.raises(InputError):
        fit_windows(at(1.0, 2.0), window_s=0.0)
    with pytest.raises(InputError):
        fit_windows([], window_s=1.0)


def test_equal_gaps_can_be_fitted():
    fit = fit_arrivals(at(*np.arange(100.0).tolist()))
    assert fit.cv == pytest.approx(0.0, abs=1e-9)
    assert fit.gaps.cv <= 0.02


@pytest.mark.parametrize(
    "law", [ExponentialGaps(), GammaGaps(2.0), WeibullGaps(2.0), GammaGaps(0.3), ConstantGaps()]
)
def test_distributions_agree_with_draws(law):
    drawn = law.draw(np.random.default_rng(5), 40_000)
    for point in (0.1, 0.5, 1.5, 4.0):
        assert law.cdf(np.array([point]))[0] == pytest.approx((drawn <= point).mean(), abs=0.01)


def test_a_description():
    requests = [
        TraceRequest(0.0, 100, 1, blocks=(1, 2), block_tokens=16),
        TraceRequest(4.0, 200, 2, blocks=(1, 2, 3), block_tokens=16),
        TraceRequest(9.9, 300, 3, blocks=(1,), block_tokens=16),
        TraceRequest(10.0, 400, 6),
    ]
    found = describe(iter(requests))
    assert (found.requests, found.duration_s, found.rate) == (4, 10.0, 0.3)
    assert found.prompt.mean == 250.0
    assert found.prompt.p50 == 250.0
    assert found.output.largest == 6
    assert found.reused_blocks == 0.5
    assert found.peak_rate == 0.3  # the first and the last are 10 s apart


def test_descriptions_of_little():
    found = describe(at(5.0))
    assert (found.rate, found.gap_cv, found.peak_rate) == (0.0, 0.0, 0.1)
    assert found.reused_blocks is None
    with pytest.raises(InputError):
        describe([])
