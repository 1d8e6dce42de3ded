"""How many requests/s does one engine serve within the SLO, by their lengths?

What Dynamo's planner interpolates: an engine profiled at fixed lengths, here in the simulator: the
most that a closed loop of 1 … 256 requests completes with mean TTFT and TPOT within the SLO, on a
grid of prompt and output lengths, linear in the logarithms between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from bench.autoscaling_parts.dynamo_planner import EngineRate
from bench.autoscaling_parts.request_world import rules
from cluster.model.workload import Slo
from cluster.sim.setup import PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.traces.request import TraceRequest

CONCURRENCIES = (1, 4, 16, 32, 64, 128, 256)
_REQUESTS = 300


def engine_rate(
    pool: PoolSetup, slo: Slo, *, prompts: Sequence[int], outputs: Sequence[int]
) -> EngineRate:
    """The profile over these lengths; beyond them the nearest counts."""
    rates = [
        [math.log(_rate(pool, slo, prompt, output)) for output in outputs] for prompt in prompts
    ]
    grid = RegularGridInterpolator((np.log(prompts), np.log(outputs)), np.array(rates))

    def rate(prompt: float, output: float) -> float:
        at = (
            math.log(min(max(prompt, prompts[0]), prompts[-1])),
            math.log(min(max(output, outputs[0]), outputs[-1])),
        )
        return float(np.exp(grid(at)[0] if np.ndim(grid(at)) else grid(at)))

    return rate


def _rate(pool: PoolSetup, slo: Slo, prompt: int, output: int) -> float:
    best = 0.0
    for concurrency in CONCURRENCIES:
        simulation = Simulation(
            Setup(pools=(replace(pool, replicas=1),), gateway=rules(output), slo=slo), keep=True
        )
        count = max(20, min(_REQUESTS, 4 * concurrency))
        same = [TraceRequest(0.0, prompt, output)] * count
        outcome = simulation.run_closed(same, concurrency=concurrency)
        done = simulation.record.requests or []
        ttft_s = float(np.mean([one.ttft_s for one in done]))
        tpot_s = float(np.mean([one.tpot_s for one in done]))
        within = (slo.ttft_s is None or ttft_s <= slo.ttft_s) and (
            slo.tpot_s is None or tpot_s <= slo.tpot_s
        )
        if best and not within:
            break
        best = max(best, len(done) / outcome.duration_s)
    return best
