"""How is a chosen layout written down? From estimates to the sections of a plan file.

Goodput of a replica is its request rate at the planned point when that point meets the SLO (it
does for every pick), else 0. Initial replicas = rate / goodput rounded up, if the rate is known.
Devices are held exclusively, so replicas are bounded by their number; a CPU rank is a share of the
cores, so there memory is the bound, and one replica per core only the default.
Invariants: minimum <= initial <= maximum; main starts with at least 1;
expectation parts sum to the expected TPOT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cluster.costmodel.estimate import EstimateTable
from cluster.errors import InputError
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import (
    MAX_COUNT,
    ClusterSection,
    Expectation,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)
from cluster.model.workload import Slo, Workload
from rl_search.engine_args import engine_args
from rl_search.kv_cache import KvCache, cpu_kv_cache


@dataclass(frozen=True, kw_only=True)
class PoolRequest:
    """What a pool is to be called and how many replicas it may have.

    `room` replicas fit the devices. `shared_bytes` is the memory that all replicas of the pool may
    take together where devices are shared (CPU cores), None where a replica holds its devices.
    `context` is isl + osl.
    """

    name: Literal["main", "light"]
    model: ModelSpec
    served_name: str
    source: str
    slo: Slo
    context: int
    max_model_len: int
    headroom: float
    room: int
    shared_bytes: float | None
    minimum: int | None
    maximum: int | None
    rate: float | None


def expectation(estimates: EstimateTable, index: int, slo: Slo) -> Expectation:
    """The expectation section of one row of `estimates`."""
    ttft, tpot = float(estimates.ttft_s[index]), float(estimates.tpot_s[index])
    met = (slo.ttft_s is None or ttft <= slo.ttft_s) and (slo.tpot_s is None or tpot <= slo.tpot_s)
    cost = float(estimates.cost_per_million_tokens[index])
    return Expectation(
        ttft_s=ttft,
        tpot_s=tpot,
        concurrency=max(1, int(estimates.running[index])),
        tokens_per_s_per_device=float(estimates.tokens_per_s_per_device[index]),
        tokens_per_s_per_user=float(estimates.tokens_per_s_per_user[index]),
        goodput_rps=float(estimates.requests_per_s[index]) if met else 0.0,
        prefill_tokens_per_s=float(estimates.prefill_tokens_per_s[index]),
        decode_tokens_per_s=float(estimates.decode_tokens_per_s[index]),
        kv_capacity_tokens=int(estimates.kv_capacity_tokens[index]),
        memory_bytes=estimates.memory_of(index),
        parts_s={name: float(part[index]) for name, part in estimates.parts.items() if part[index]},
        cost_per_million_tokens=None if math.isnan(cost) else cost,
        provenance=estimates.provenance,
    )


def pool_of(
    request: PoolRequest, layout: Layout, group: NodeGroup, *, estimates: EstimateTable, index: int
) -> PoolSection:
    """The pool section of a chosen layout."""
    expected = expectation(estimates, index, request.slo)
    model = request.model
    cache: KvCache | None = None
    if group.device.kind == "cpu":
        cache = cpu_kv_cache(
            estimates.memory,
            index,
            layout=layout,
            context=request.context,
            max_model_len=request.max_model_len,
        )
        held = {**expected.memory_bytes, "kv": float(cache.bytes_per_rank)}
        expected = expected.model_copy(
            update={"kv_capacity_tokens": cache.tokens, "memory_bytes": held}
        )
    return PoolSection(
        name=request.name,
        model=ModelSection(
            name=request.served_name,
            source=request.source,
            params=model.params,
            weight_bytes=model.weight_bytes,
            max_context=model.max_context,
        ),
        layout=LayoutSection.from_layout(layout),
        replicas=_bounds(request, expected, ranks=layout.devices_per_replica),
        engine_args=dict(
            engine_args(
                layout,
                model,
                group.device,
                max_model_len=request.max_model_len,
                headroom=request.headroom,
                kv_cache_bytes=None if cache is None else cache.bytes_per_rank,
            )
        ),
        expected=expected,
    )


def plan_of(
    cluster: str,
    group: NodeGroup,
    *,
    workload: Workload,
    slo: Slo,
    pools: tuple[PoolSection, ...],
) -> Plan:
    """The plan file of `pools` on `group` of `cluster`."""
    return Plan(
        cluster=ClusterSection(
            spec=cluster,
            device=group.device.name,
            nodes=group.nodes,
            devices_per_node=group.devices_per_node,
            device_kind="cpu" if group.device.kind == "cpu" else "gpu",
        ),
        workload=WorkloadSection(isl=workload.isl, osl=workload.osl, rate=workload.rate),
        slo=SloSection(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s),
        pools=pools,
    )


def pool_bytes(pool: PoolSection) -> float:
    """Memory that all replicas of a pool take together at their maximum."""
    assert pool.expected is not None
    ranks = pool.layout.to_layout(replicas=pool.replicas.maximum).devices
    return ranks * sum(pool.expected.memory_bytes.values())


def _bounds(request: PoolRequest, expected: Expectation, *, ranks: int) -> ReplicaBounds:
    most, what = request.room, "devices"
    if request.shared_bytes is not None:
        replica = ranks * sum(expected.memory_bytes.values())
        most, what = math.floor(request.shared_bytes / replica), "memory"
    most = min(most, MAX_COUNT)
    default = max(1, min(request.room, most))
    maximum = default if request.maximum is None else request.maximum
    if maximum > most:
        raise InputError(
            f"max replicas {maximum} of the {request.name} pool need more {what} than there is: "
            f"{most} replica(s) of this layout fit. Fix: lower --max-replicas."
        )
    minimum = min(1, maximum) if request.minimum is None else request.minimum
    if not 0 <= minimum <= maximum or maximum < 1:
        raise InputError(
            f"replicas of the {request.name} pool must satisfy 0 <= minimum <= maximum and "
            f"maximum >= 1, got {minimum} and {maximum} ({most} fit the {what}). "
            "Fix: lower --min-replicas or add devices."
        )
    # A main pool that may sleep still starts awake: someone has just asked for it.
    least = max(1, minimum) if request.name == "main" else minimum
    wanted, goodput = least, expected.goodput_rps
    if request.rate is not None and goodput > 0.0:
        wanted = math.ceil(min(request.rate / goodput, maximum))
    return ReplicaBounds(minimum=minimum, initial=min(max(wanted, least), maximum), maximum=maximum)
