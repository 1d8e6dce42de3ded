"""What do tokens cost on one replica of a plan's pool? From its expectation and the cost model.

A replica that serves the plan's workload at its goodput is busy all the time, so a request of that
workload takes 1 / goodput engine-seconds. Of these the decode steps take

    (OSL - 1) t / b,  t a step without prompts, b the sequences that share it,

and prompts the rest (`service`); what of a step is attention grows with the context. The cost model
says the same for fewer requests in flight; its prices are scaled to what the plan expects.

| the plan's pool | its prices |
|---|---|
| has an expectation; model and device are known | of the cost model, scaled to its goodput |
| has an expectation only, or cuts operators one by one | of the expectation, at its own batch |
| has none; model and device are known | of the cost model, with as many requests as fit |
| nothing is known | by predicted tokens (`engine_work.turned_over`) |
"""

from __future__ import annotations

import numpy as np

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.estimate import EstimateTable, Serving, estimate
from cluster.costmodel.speculation import Speculation
from cluster.engine_work import EngineWork, TokenPrices, shared_evenly, turned_over
from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Expectation, Plan, PoolSection
from cluster.model.planned import planned_group, planned_model
from cluster.model.workload import Workload
from cluster.pool_capacity import in_flight_tokens

# What prompts add to a decode step, in the parts of a TPOT.
_OF_PROMPTS = ("prefill_share", "stragglers")


def planned_work(pool: PoolSection, *, plan: Plan) -> EngineWork:
    """What tokens cost on a replica of `pool`; never raises for what is not known."""
    expected = pool.expected
    modelled = _modelled(pool, plan=plan)
    if expected is None or expected.tokens_per_s_per_device <= 0.0:
        return modelled or turned_over(in_flight_tokens(pool, plan=plan))
    own = _expected(expected, pool, plan=plan)
    if modelled is None:
        return EngineWork(prices=(own,), context=_context(plan))
    return _scaled(modelled, rate=_rate(expected, pool, plan=plan), plan=plan)


def serving_of(pool: PoolSection) -> Serving:
    """How a plan says that a pool's replicas are served."""
    section = pool.serving
    if section is None:
        return Serving()
    speculation = None
    if section.draft_tokens is not None:
        speculation = Speculation(
            drafts=section.draft_tokens,
            acceptance=section.draft_acceptance,
            draft_share=section.draft_share,
        )
    return Serving(
        backend=section.backend, speculation=speculation, offload_bytes=section.offload_bytes
    )


def modelled_work(
    model: ModelSpec,
    group: NodeGroup,
    pool: PoolSection,
    *,
    plan: Plan,
    coefficients: Coefficients | None = None,
) -> EngineWork | None:
    """By the cost model; None if it says that a replica does not fit."""
    most = pool.layout.max_num_seqs if pool.expected is None else pool.expected.concurrency
    batches = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    layout = pool.layout.to_layout(replicas=1)
    section = pool.serving
    table = estimate(
        model,
        group,
        LayoutTable.from_layouts([layout] * len(batches)),
        Workload(
            isl=plan.workload.isl,
            osl=plan.workload.osl,
            prefix_hit=0.0 if section is None else section.prefix_hit,
        ),
        concurrency=np.asarray(batches, dtype=np.float64),
        coefficients=coefficients,
        serving=serving_of(pool),
    )
    if not table.fits[-1]:
        return None
    rows = [row for row in range(len(batches)) if batches[row] <= table.running[-1]]
    if table.running[-1] > batches[rows[-1]]:
        rows.append(len(batches) - 1)  # as many as the KV cache holds
    return EngineWork(
        prices=tuple(_priced(table, row, plan=plan) for row in rows), context=_context(plan)
    )


def _modelled(pool: PoolSection, *, plan: Plan) -> EngineWork | None:
    if pool.layout.dims:
        return None
    try:
        model = planned_model(pool, source="plan")
        return modelled_work(model, planned_group(plan.cluster), pool, plan=plan)
    except InputError:
        return None


def _priced(table: EstimateTable, row: int, *, plan: Plan) -> TokenPrices:
    return _prices(
        rate=float(table.requests_per_s[row]),
        batch=float(table.running[row]),
        tpot_s=float(table.tpot_s[row]),
        decode_tokens_per_s=float(table.decode_tokens_per_s[row]),
        parts_s={name: float(part[row]) for name, part in table.parts.items()},
        plan=plan,
    )


def _expected(expected: Expectation, pool: PoolSection, *, plan: Plan) -> TokenPrices:
    return _prices(
        rate=_rate(expected, pool, plan=plan),
        batch=float(expected.concurrency),
        tpot_s=expected.tpot_s,
        decode_tokens_per_s=expected.decode_tokens_per_s,
        parts_s=expected.parts_s,
        plan=plan,
    )


def _prices(
    *,
    rate: float,
    batch: float,
    tpot_s: float,
    decode_tokens_per_s: float,
    parts_s: dict[str, float],
    plan: Plan,
) -> TokenPrices:
    alone_s = tpot_s - sum(parts_s.get(name, 0.0) for name in _OF_PROMPTS)
    decode_share = rate * max(plan.workload.osl - 1, 1) * alone_s / (decode_tokens_per_s * tpot_s)
    return shared_evenly(
        rate=rate,
        batch=batch,
        prompt_share=min(max(1.0 - decode_share, 0.0), 1.0),
        context_share=min(parts_s.get("attention", 0.0) / alone_s, 1.0),
        prompt_tokens=plan.workload.isl,
        output_tokens=plan.workload.osl,
    )


def _rate(expected: Expectation, pool: PoolSection, *, plan: Plan) -> float:
    """Requests/s at the planned point: the goodput, or the rate where that misses the SLO."""
    if expected.goodput_rps > 0.0:
        return expected.goodput_rps
    devices = pool.layout.to_layout(replicas=1).devices_per_replica
    return expected.tokens_per_s_per_device * devices / plan.workload.osl


def _scaled(work: EngineWork, *, rate: float, plan: Plan) -> EngineWork:
    """The same prices, all times a factor, so that `rate` of the plan's requests are 1."""
    modelled = work.of(prompt_tokens=plan.workload.isl, output_tokens=plan.workload.osl)
    return work.times(1.0 / (rate * modelled))


def _context(plan: Plan) -> float:
    return plan.workload.isl + plan.workload.osl / 2.0
