"""The trace simulator as a world: every request, engine step and cold start.

The gateway has the live rules (`GatewayRules`), requests set no limits, so that the formula's plan
knowledge is the mean output. A window's misses are those of the window simulated alone, after a
lead-in of the traffic before it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.autoscaling_parts.world import POOL, Constant, Floats, Run, Sustained, Watched
from cluster.model.workload import Slo
from cluster.routing import predicted_tokens
from cluster.sim.driver import Driver
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.traces.request import TraceRequest

LEAD_IN_S = 30.0
SUSTAINS = 0.95  # of evenly spaced requests within the SLO, as a plan's goodput
_SOME = 2000
_LEAST_RPS, _MOST_RPS = 0.02, 64.0


def mean_output(requests: Sequence[TraceRequest]) -> float:
    """Output tokens of a request."""
    return float(np.mean([request.output_tokens for request in requests]))


def rules(usual: float) -> GatewayRules:
    """The live gateway's, told the usual output."""
    return GatewayRules(expected_output=max(1, round(usual)), length_predictor="formula")


def sustained(pool: PoolSetup, requests: Sequence[TraceRequest], slo: Slo) -> Sustained:
    """What one replica carries of these requests at even distances, by bisection."""
    some = requests[:_SOME]
    usual = mean_output(requests)
    setup = Setup(pools=(replace(pool, replicas=1),), gateway=rules(usual), slo=slo)
    tokens = predicted_tokens(
        prompt_tokens=round(float(np.mean([one.prompt_tokens for one in some]))),
        output_tokens=usual,
    )
    low, high, flight = _LEAST_RPS, _MOST_RPS, 0.0
    for _ in range(9):
        rate = math.sqrt(low * high)
        evenly = [one._replace(arrival_s=index / rate) for index, one in enumerate(some)]
        simulation = Simulation(setup, keep=True)
        if simulation.run(evenly).attainment >= SUSTAINS:
            low = rate
            done = simulation.record.requests or []
            held = sum(
                predicted_tokens(prompt_tokens=one.prompt_tokens, output_tokens=usual) * one.e2e_s
                for one in done
            )
            flight = held / (len(some) / rate)
        else:
            high = rate
    if flight == 0.0:
        raise ValueError(f"one replica of {pool.name} keeps the SLO at no rate.")
    return Sustained(requests_per_s=low, tokens_per_s=low * tokens, in_flight_tokens=flight)


@dataclass(frozen=True, kw_only=True)
class RequestWorld:
    """A trace and the replicas that serve it."""

    requests: Sequence[TraceRequest]
    pool: PoolSetup
    slo: Slo
    sustained: Sustained
    initial: int
    most: int
    window_s: float = 30.0

    @property
    def start_s(self) -> float:
        """See `Bench`."""
        return self.pool.spec.start_s

    def run(self, driver: Driver) -> Run:
        """See `Bench`."""
        watched = Watched(driver, initial=self.initial, most=self.most)
        outcome = Simulation(self._setup(self.initial), driver=watched).run(self.requests)
        return Run(
            attainment=outcome.attainment,
            gpu_hours=outcome.device_hours,
            duration_s=outcome.duration_s,
            targets=tuple(watched.targets),
        )

    def arrived(self) -> Floats:
        """See `Bench`."""
        times = [request.arrival_s for request in self.requests]
        windows = math.floor(times[-1] / self.window_s) + 1
        return np.bincount((np.array(times) / self.window_s).astype(int), minlength=windows).astype(
            np.float64
        )

    def missed(self, replicas: int, windows: Sequence[int]) -> Floats:
        """See `Bench`."""
        return np.array([self._missed(replicas, window) for window in windows], dtype=np.float64)

    def _missed(self, replicas: int, window: int) -> float:
        begins_s = window * self.window_s
        lead_s = max(0.0, begins_s - LEAD_IN_S)

        def first(at_s: float) -> int:
            return bisect_left(self.requests, at_s, key=lambda one: one.arrival_s)

        some = self.requests[first(lead_s) : first(begins_s + self.window_s)]
        arrived = len(some) - (first(begins_s) - first(lead_s))
        if not arrived:
            return 0.0
        moved = [one._replace(arrival_s=one.arrival_s - lead_s) for one in some]
        simulation = Simulation(self._setup(replicas), driver=Constant(replicas), keep=True)
        simulation.run(moved)
        good = sum(
            one.arrival_s >= begins_s - lead_s
            and (self.slo.ttft_s is None or one.ttft_s <= self.slo.ttft_s)
            and (self.slo.tpot_s is None or one.tpot_s <= self.slo.tpot_s)
            for one in simulation.record.requests or []
        )
        return float(arrived - good)

    def _setup(self, replicas: int) -> Setup:
        usual = mean_output(self.requests[:_SOME])
        assert self.pool.name == POOL
        return Setup(
            pools=(replace(self.pool, replicas=replicas),), gateway=rules(usual), slo=self.slo
        )
