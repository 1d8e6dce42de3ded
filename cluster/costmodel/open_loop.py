"""What happens at a given arrival rate? Requests come when they like; the batch follows.

The closed loop says how fast b decoding sequences make progress and what rate X a full batch (by
the batch limit or the KV cache) sustains; `occupancy` says which b a request meets, hence its TPOT,
and with which chance it finds no place. Then it waits exponentially, 1/(X (1 - (lam/X)^(1/phi))) on
average, times (ca^2 + cs^2)/2 (Allen and Cunneen). TPOT varies by 1/(1 - h)^2 more than in a closed
loop (as a busy period does against its work; h and phi as there).

Before a prompt's own chunks come those ahead of it: with S seconds of full chunks per prompt, s
seconds of its own and rho = lam S,

    W = min(lam s, 1) s/2 + ca^2 rho^2 S / (2 (1 - rho)),

the Pollaczek-Khinchine wait of M/D/1 where s = S; short prompts share a step, so S < s. Places are
waited for only where they are what limits X; of the two queues the longer one counts, as both are
before one server. Little's law gives those in flight.

Squared variation of service cs^2: 0 for equal lengths, else 1. A replica's data-parallel ranks
each get a random share of the arrivals.
Shapes: (n,). Invariants: in flight = rate (TTFT + (OSL - 1) TPOT); unstable at and above
`max_rate`, which is 0 where nothing fits; mean latencies rise with the rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import (
    FirstToken,
    Latencies,
    Quantiles,
    Queue,
    itl_quantiles,
    tpot_quantiles,
    ttft_quantiles,
)
from cluster.costmodel.estimate import PLAIN, Serving, demand_of
from cluster.costmodel.memory import DEFAULT_HEADROOM, memory_table
from cluster.costmodel.occupancy import Occupancy, occupancy, rising
from cluster.costmodel.precision import as_held
from cluster.costmodel.service import Demand, SteadyState, steady_state
from cluster.costmodel.steps import StepLoad, prompt_host_s, step_parts, total
from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Lengths, Workload

Floats = NDArray[np.float64]
_LOADS = 14  # batch sizes at which the closed loop is evaluated, evenly in the logarithm
_NEARLY_ALL = 0.999
_ROUNDING = 1e-9
_PLACES_LIMIT = 0.9  # share of places taken at the full rate, above which they are the limit


@dataclass(frozen=True, kw_only=True)
class OpenLoopTable:
    """n replicas under n arrival rates. Rates are requests/s of a replica, times seconds.

    Where not `stable`, TTFT and `in_flight` are infinite and TPOT is that of the full batch.
    """

    rate: Floats
    max_rate: Floats
    in_flight: Floats
    decoding: Floats
    latencies: Latencies

    @property
    def utilisation(self) -> Floats:
        """Rate over the greatest sustainable one, (n,); infinite where nothing fits."""
        none = np.full_like(self.rate, np.inf)
        return np.divide(self.rate, self.max_rate, out=none, where=self.max_rate > 0.0)

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Whether the replica keeps up, (n,)."""
        return self.rate < self.max_rate


def open_loop(
    model: ModelSpec,
    group: NodeGroup,
    table: LayoutTable,
    workload: Workload,
    *,
    rate: ArrayLike,
    cv2: float = 1.0,
    headroom: float = DEFAULT_HEADROOM,
    coefficients: Coefficients | None = None,
    serving: Serving = PLAIN,
) -> OpenLoopTable:
    """Every layout of `table` with `rate` requests/s arriving at each replica.

    `cv2`: squared variation of the time between arrivals (1: Poisson). Never raises for layouts
    that do not fit. Raises InputError for a rate or variation that is none.
    """
    chosen = coefficients if coefficients is not None else default_coefficients()
    model = as_held(model, group.device)
    case = make_case(model, group, table, chosen, backend=serving.backend, version=serving.version)
    grid = case.grid
    memory = memory_table(
        model,
        group.device,
        grid,
        table,
        context=workload.isl + workload.osl,
        headroom=headroom,
        offloaded=serving.offload_bytes,
    )
    arriving = np.broadcast_to(np.asarray(rate, dtype=np.float64), grid.tp.shape)
    if not (np.isfinite(arriving).all() and (arriving > 0.0).all() and 0.0 <= cv2 < np.inf):
        raise InputError("rates must be finite and more than 0 requests/s, cv2 at least 0.")
    batch = np.minimum(np.asarray(table.max_num_seqs, dtype=np.float64), memory.max_sequences)
    full = np.maximum(batch, grid.dp)
    demand = demand_of(grid, workload, serving, table, offered=full, running=full)
    # Nothing moves in step here: no burst, no slots, and the queue is this module's.
    demand = replace(demand, equal=np.zeros_like(demand.equal))
    found = _settle(
        case,
        demand,
        _without_queues(case, chosen),
        rate=arriving / grid.dp,
        arrivals=cv2,
        lengths=0.0 if workload.lengths is Lengths.EQUAL else 1.0,
    )
    limit = np.where(memory.fits, found.max_rate, 0.0)
    stable = found.rate < limit

    def beyond(figures: Quantiles) -> Quantiles:
        made = {name: np.where(stable, value, np.inf) for name, value in vars(figures).items()}
        return Quantiles(**made)

    return OpenLoopTable(
        rate=arriving.copy(),
        max_rate=limit * grid.dp,
        in_flight=np.where(stable, found.in_flight * grid.dp, np.inf),
        decoding=found.decoding * grid.dp,
        latencies=replace(found.latencies, ttft=beyond(found.latencies.ttft)),
    )


def _settle(
    case: Case,
    demand: Demand,
    coefficients: Coefficients,
    *,
    rate: Floats,
    arrivals: float,
    lengths: float,
) -> OpenLoopTable:
    """The operating point of one rank of each replica."""
    loads = [demand.admitted**share for share in np.linspace(0.0, 1.0, _LOADS)]
    states = [
        steady_state(case, replace(demand, offered=offered), coefficients) for offered in loads
    ]
    # Full of decoding sequences, a step has the least room for prompts.
    least = _full_chunks_s(case, demand, coefficients, decoding=states[-1].decoding)
    most = np.minimum(states[-1].requests_per_s, 1.0 / least)
    sustained = np.minimum(rate, most * _NEARLY_ALL)
    batch = occupancy(states, demand.tokens, sustained, most)
    offered = np.array(
        [
            np.interp(
                # Of loads under which as many decode the highest one: the law of batches, not
                # rounding, says how often there is nobody.
                batch.decoding[row] * (1.0 + _ROUNDING),
                rising(states, row),
                [load[row] for load in loads],
            )
            for row in range(len(rate))
        ]
    )
    state = _scaled(steady_state(case, replace(demand, offered=offered), coefficients), batch)
    steps = state.mixed_s - np.where(case.engine.mixes, 0.0, state.decode_s)
    steps = steps * demand.accepted
    # What only the prompt itself waits for keeps no other one waiting.
    own = state.prefill_s * steps / (steps + prompt_host_s(case, coefficients))
    shared = np.minimum(_full_chunks_s(case, demand, coefficients, decoding=batch.decoding), own)
    busy = np.minimum(sustained * shared, _NEARLY_ALL)
    meets = np.minimum(sustained * own, 1.0)
    prompts = meets * own / 2.0 + arrivals * busy**2 * shared / (2.0 * (1.0 - busy))
    taken = states[-1].decoding + most * states[-1].prefill_s
    full = np.where(taken > _PLACES_LIMIT * demand.admitted, batch.full, 0.0)
    place = full * batch.place_s * (arrivals + lengths) / 2.0
    waits = FirstToken(
        fixed_s=state.ttft_parts["host"] + state.prefill_s,
        step_s=state.ttft_parts["step_wait"] * (1.0 - batch.idle),
        slot_s=np.zeros_like(rate),
        burst=np.zeros_like(rate),
        burst_s=np.zeros_like(rate),
        prompts=Queue(mean_s=prompts, share=meets, stages=np.ones_like(rate)),
        backlog=Queue(
            mean_s=np.maximum(place - prompts, 0.0), share=full, stages=np.ones_like(rate)
        ),
    )
    found = Latencies(
        ttft=ttft_quantiles(waits),
        tpot=tpot_quantiles(
            state, demand, swell=1.0 / (1.0 - batch.halted) ** 2, drift=batch.drift
        ),
        itl=itl_quantiles(state, demand),
    )
    return OpenLoopTable(
        rate=rate,
        max_rate=most,
        in_flight=sustained * (found.ttft.mean + demand.tokens * found.tpot.mean),
        decoding=batch.decoding,
        latencies=found,
    )


def _scaled(state: SteadyState, batch: Occupancy) -> SteadyState:
    """The state at the mean batch with the mean TPOT over batches."""
    factor = batch.tpot_s / state.tpot_s
    return replace(
        state,
        tpot_parts={name: part * factor for name, part in state.tpot_parts.items()},
        decode_s=state.decode_s * factor,
        mixed_s=state.mixed_s * factor,
        decoding=batch.decoding,
    )


def _full_chunks_s(
    case: Case, demand: Demand, coefficients: Coefficients, *, decoding: Floats
) -> Floats:
    """Seconds per prompt where steps are full of prompt tokens, beside the decoding sequences."""
    waves = np.clip(np.floor(demand.running), 1.0, case.grid.pp)
    beside = np.where(case.engine.mixes, decoding / waves, 0.0)
    carried = np.maximum(demand.chunk - beside, 1.0)
    ranks = np.where(case.is_moe, case.grid.dp, 1.0)
    load = StepLoad(
        decode=beside,
        context=demand.isl + demand.osl / 2.0,
        prefill=carried,
        prompt=demand.isl,
        routed=(beside * demand.queries + carried) * ranks,
        queries=demand.queries,
        cached=demand.cached,
        offloaded=demand.offloaded,
    )
    step_s = total(step_parts(case, load, coefficients))
    return np.asarray(step_s * demand.fresh / carried / waves)


def _without_queues(case: Case, coefficients: Coefficients) -> Coefficients:
    """The engine's coefficients with what a closed loop queues taken out."""
    values, engine = coefficients.values.copy(), case.engine
    for positions in (engine.burst_drawn, engine.burst_equal, engine.random):
        values[positions] = 1e-12
    return coefficients.with_values(values)
