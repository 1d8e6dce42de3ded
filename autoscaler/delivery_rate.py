"""How fast do replicas work, against what the plan says? Measured over predicted.

Between two of its reports a replica has computed so many prompt tokens and made so many output
tokens. The plan's prices, at the batch it had (`EngineWork.spent_s`), say how long that takes;
the clock says how long it took:

    delivered = (sum of predicted seconds + prior) / (sum of seconds + prior)

over all replicas of a pool, older ones fading. 0.5: replicas are half as fast as planned.

A replica teaches only while it is busy: with few sequences it may be idle in between. One that
makes nothing at all teaches nothing until it goes on: it is in the middle of a long prompt, or
stuck, which is others' business (`autoscaler.faults`). A restarted one counts anew.

Invariants: least <= delivered <= most; 1 if nothing was measured; unchanged by reports seen before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autoscaler.delivery_params import DeliveryParams
from autoscaler.snapshot import ReplicaObservation
from autoscaler.view import PoolView
from cluster.engine_work import EngineWork

# Reports further apart say nothing of the batch in between.
_MOST_APART_S = 15.0
_FEWEST = 2  # in flight: with one, the engine waits for the next as often as not


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What is remembered of a pool. Sums over its replicas of faded seconds.

    `reports`: the last of each replica that was busy and had got on.
    """

    predicted_s: float = 0.0
    spent_s: float = 0.0
    reports: tuple[ReplicaObservation, ...] = ()


def delivered(delivery: Delivery, params: DeliveryParams) -> float:
    """Measured over predicted speed."""
    ratio = (delivery.predicted_s + params.prior_s) / (delivery.spent_s + params.prior_s)
    return min(max(ratio, params.least), params.most)


def step_delivery(
    deliveries: Sequence[Delivery], views: Sequence[PoolView], params: DeliveryParams
) -> tuple[tuple[Delivery, ...], tuple[PoolView, ...]]:
    """One step of every pool: what is remembered, and the views with what replicas deliver."""
    before = deliveries or (Delivery(),) * len(views)
    after = tuple(
        measure(
            delivery,
            () if view.size is None else view.size.replicas,
            work=view.pool.work,
            params=params,
        )
        for delivery, view in zip(before, views, strict=True)
    )
    seen = tuple(
        replace(view, delivered=delivered(delivery, params))
        for delivery, view in zip(after, views, strict=True)
    )
    return after, seen


def measure(
    delivery: Delivery,
    replicas: Iterable[ReplicaObservation],
    *,
    work: EngineWork | None,
    params: DeliveryParams,
) -> Delivery:
    """`delivery` after these reports; nothing is learnt where prices are not known."""
    if work is None:
        return delivery
    known = {report.replica_id: report for report in delivery.reports}
    fewest = max(_FEWEST, params.busy_share * work.planned.batch)
    kept: list[ReplicaObservation] = []
    predicted_s = spent_s = 0.0
    for now in replicas:
        if now.running < fewest:
            continue
        before = known.get(now.replica_id)
        step = None if before is None else _step(before, now, work=work)
        if before is None or step is None:
            kept.append(now)
        elif step == 0.0:
            kept.append(before)
        else:
            kept.append(now)
            predicted_s += step
            spent_s += now.observed_s - before.observed_s
    fade = 0.5 ** (spent_s / params.half_life_s)
    return replace(
        delivery,
        predicted_s=fade * delivery.predicted_s + predicted_s,
        spent_s=fade * delivery.spent_s + spent_s,
        reports=tuple(kept),
    )


def _step(before: ReplicaObservation, now: ReplicaObservation, *, work: EngineWork) -> float | None:
    """Seconds predicted for what was done in between; None if the two do not belong together."""
    prompt = now.prompt_tokens - before.prompt_tokens
    output = now.output_tokens - before.output_tokens
    apart_s = now.observed_s - before.observed_s
    if apart_s > _MOST_APART_S or apart_s < 0.0 or prompt < 0 or output < 0:
        return None
    if apart_s == 0.0:
        return 0.0
    return work.spent_s(
        prompt_tokens=prompt, output_tokens=output, batch=(before.running + now.running) / 2.0
    )
