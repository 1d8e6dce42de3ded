"""Priors: tight where a table was measured, wide for host work, bounded, none for the frozen."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest

from cluster.calibration.predict import with_builds
from cluster.calibration.priors import FROZEN, SPREADS, fitted_names, prior_of, spread_of
from cluster.costmodel.coefficients import is_share
from tests.calibration.samples import run
from tests.calibration.synthetic import BASE

EVERY = with_builds(BASE, [run()])


@pytest.mark.parametrize("name", ["gemm.hopper.bf16.mbu", "link.hopper.efficiency"])
def test_measured_tables_are_held_tighter_than_host_work(name):
    assert spread_of(name) < spread_of("engine.vllm.step_s")


def test_the_first_pattern_decides():
    version = "build.vllm.0.19.0"
    assert spread_of(f"{version}.time") < spread_of(f"{version}.request")
    assert spread_of("engine.vllm.hopper.gemm") < spread_of("engine.vllm.step_s")
    assert spread_of("link.hopper.efficiency") < spread_of("link.hopper.latency_s")
    assert spread_of("nothing.known") == SPREADS[-1][1]


def test_every_coefficient_has_a_sensible_spread():
    assert all(0.0 < spread_of(name) <= 1.0 for name in EVERY.names)


@pytest.mark.parametrize("pattern", FROZEN)
def test_frozen_coefficients_are_not_fitted(pattern):
    assert not any(fnmatchcase(name, pattern) for name in fitted_names(EVERY))


def test_what_runs_cannot_tell_apart_is_frozen():
    left = set(EVERY.names) - set(fitted_names(EVERY))
    assert {"gemm.hopper.bf16.serial_s", "gemm.cpu.fp32.mbu", "kernel.cpu.small_s"} <= left
    assert "gemm.hopper.bf16.mbu" not in left


def test_priors_are_centred_on_the_values_and_bounded():
    names = fitted_names(EVERY)
    prior = prior_of(names, EVERY)
    assert prior.names == names
    values = EVERY.values[prior.positions]
    np.testing.assert_allclose(np.exp(prior.centre), values)
    np.testing.assert_allclose(np.exp(prior.low), values / 20.0)
    shares = np.array([is_share(name) for name in names])
    assert shares.any()
    assert (prior.high[shares] <= 0.0).all()
    np.testing.assert_allclose(np.exp(prior.high[~shares]), values[~shares] * 20.0)
    assert (prior.low < prior.centre).all()
    assert (prior.centre <= prior.high).all()
