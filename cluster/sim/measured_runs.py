"""What does the simulator say of measured closed-loop runs? One run replayed request by request.

A load generator keeps c requests in flight. The replay has no formula for queueing: prompts wait
for chunks, batches form, the cache fills. What a run does not record is taken as the cost model
takes it (`calibration.predict`): lengths, cache, number formats. Two things are the generator's:

- It starts all c requests at once. The share of requests that came so is `burst_share` of the
  engine and version, as fitted; the replay therefore counts c / share requests. They are followed
  by c more, so that the batch does not run empty under those counted: step times were fitted to a
  loop that never ends, and so stand for the end of the measured runs as well.
- Requests of equal lengths would stay in step for ever. Measured TPOT says that they do not:
  lengths of the replay spread by a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from cluster.calibration.formats import as_run
from cluster.calibration.predict import (
    HEADROOM,
    Lowered,
    group_of,
    layout_of,
    lower,
    speculating,
)
from cluster.calibration.runs import Run
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.memory import memory_table
from cluster.costmodel.service import Demand, burst_share
from cluster.costmodel.speculation import Speculation
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.from_plan import BLOCK_TOKENS, lag_steps
from cluster.sim.lags import lags_of
from cluster.sim.modelled_times import ModelledTimes
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.spec import ReplicaSpec
from cluster.traces.request import TraceRequest

_SPREAD = 0.1  # of lengths about their mean: what InferenceX draws, and what equal ones come to
_FEWEST, _MOST = 1.5, 20.0  # waves of c requests that are replayed
_NO_GATEWAY = GatewayRules(batch_wait_s=0.0, max_queued=10**9, queue_wait_s=1e12)
_UNLIMITED = ReplicaLimits(max_requests=10**9, max_tokens=1e15)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Means over a replayed run, seconds; `step_s` the median gap between tokens.

    `place_s`: time between two completions, of a run with equal lengths (else 0).
    """

    ttft_s: float
    tpot_s: float
    step_s: float
    place_s: float
    requests: int


def replay_run(
    run: Run,
    models: Callable[[str], ModelSpec],
    *,
    coefficients: Coefficients,
    lagging: bool = True,
) -> Replayed:
    """One run. `coefficients` know its engine version (`predict.with_builds`).

    `lagging`: with the engine's scheduler lags; without them they can be fitted.
    """
    lowered = lower([run], models, coefficients=coefficients)
    demand = speculating(lowered, coefficients)
    pool = PoolSetup(
        name="main",
        spec=_spec(run, as_run(models(run.config), run), lowered, demand, coefficients),
        replicas=1,
        limits=_UNLIMITED,
    )
    if not lagging:
        pool = replace(pool, spec=replace(pool.spec, lag_steps=0.0))
    setup = Setup(pools=(pool,), gateway=_NO_GATEWAY)
    burst = float(burst_share(lowered.case, demand, coefficients)[0])
    waves = min(max(1.0 / burst, _FEWEST), _MOST)
    counted = max(int(run.concurrency * waves), run.concurrency + 1)
    simulation = Simulation(setup, keep=True)
    requests = _requests(demand, count=counted + run.concurrency)
    record = simulation.run_closed(requests, concurrency=run.concurrency).record
    done = [one for one in record.requests or () if one.number < counted]
    place_s = 0.0
    if bool(demand.equal[0]) and run.concurrency > 1:
        place_s = fmean(one.e2e_s for one in done) / run.concurrency
    places = lags_of(run.backend).places if lagging else 0.0
    return Replayed(
        ttft_s=fmean(one.ttft_s for one in done) + places * place_s,
        tpot_s=fmean([one.tpot_s for one in done if one.output_tokens > 1] or [0.0]),
        step_s=record.itl.quantile(0.5),
        place_s=place_s,
        requests=record.completed,
    )


def _spec(
    run: Run, model: ModelSpec, lowered: Lowered, demand: Demand, coefficients: Coefficients
) -> ReplicaSpec:
    case, layout = lowered.case, layout_of(run)
    queries, chunk = int(demand.queries[0]), int(demand.chunk[0])
    seqs = max(1, math.ceil(run.concurrency / layout.dp))
    memory = memory_table(
        model,
        group_of(run.system).device,
        case.grid,
        LayoutTable.from_layouts([layout]),
        context=max(1, round(float(demand.isl[0] + demand.osl[0] / 2.0))),
        headroom=HEADROOM,
    )
    longest = math.ceil((run.isl + run.osl) * (1.0 + _SPREAD) / BLOCK_TOKENS) + 2
    kept, share = float(demand.accepted[0]), float(demand.draft_share[0])
    return ReplicaSpec(
        times=ModelledTimes(
            case,
            coefficients,
            queries=queries,
            draft_share=share,
            most_tokens=chunk + seqs * queries,
        ),
        # Ranks are filled unevenly; what limits a run is how many are in flight.
        max_num_seqs=2 * seqs,
        chunk=chunk,
        kv_blocks=max(int(memory.kv_capacity_tokens[0]) // layout.dp // BLOCK_TOKENS, longest),
        ranks=layout.dp,
        lockstep=model.experts > 0,
        mixes=bool(case.engine.mixes[0]),
        speculation=None
        if queries == 1
        else Speculation.keeping(kept, drafts=queries - 1, draft_share=share / (queries - 1)),
        lag_steps=lag_steps(case, coefficients, run.backend, layout),
        devices=layout.devices_per_replica,
    )


def _requests(demand: Demand, *, count: int) -> list[TraceRequest]:
    means = (float(demand.isl[0]), float(demand.osl[0]))
    drawn = np.random.default_rng(0).uniform(1.0 - _SPREAD, 1.0 + _SPREAD, (count, 2))
    if bool(demand.equal[0]):
        drawn[:, 0] = 1.0  # prompts are made to length; answers end when they end
    sizes = np.maximum(np.rint(drawn * means), 1.0).astype(np.int64)
    return [TraceRequest(0.0, int(prompt), int(output)) for prompt, output in sizes]
