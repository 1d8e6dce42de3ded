"""What is wrong with one pool of a plan? One generator of findings per concern.

Sources of the thresholds: more than 8 pipeline stages were reported to cost 30 % to the bubble;
an expectation is stale when TPOT moved by more than a quarter.
Invariant: every finding carries a cost that is a figure of the cost model or a plain consequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cluster.costmodel.estimate import EstimateTable, Serving
from cluster.costmodel.memory import DEFAULT_HEADROOM
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import PoolSection, SloSection
from cluster.model.rules import Severity, explain
from cluster.model.startable import DEGREES
from cluster.model.workload import Workload
from rl_search.serving_args import serving_of
from rl_search.sharded_estimate import estimate_layouts

MAX_STAGES = 8
STALE = 0.25
GIB = 1024.0**3
DP_NOT_SERVED = (
    "data-parallel attention is planned and exported, but `shardwise up` serves replicas of dp 1"
)

DIMS_NOT_SERVED = (
    "vLLM takes no per-operator dims: it cuts the first operator of a pair along its output and "
    "the second along its input"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing wrong with one pool: which rule, what is wrong, what it costs, what mends it.

    A warning leaves the plan valid.
    """

    pool: str
    rule: str
    problem: str
    cost: str
    fix: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A pool with what its layout is estimated to do at full batch, one replica."""

    section: PoolSection
    model: ModelSpec
    group: NodeGroup
    cluster: ClusterSpec
    layout: Layout
    workload: Workload
    headroom: float
    serving: Serving
    estimates: EstimateTable

    @property
    def kv_bytes(self) -> float:
        """KV cache of a rank: what the memory leaves, or less where the engine asks for less."""
        left = float(self.estimates.memory.kv_budget[0])
        asked = self.section.engine_args.get("kv_cache_memory_bytes")
        return min(left, float(asked)) if isinstance(asked, int) else left

    @property
    def rank_bytes(self) -> float:
        """Memory of one rank: weights, activations, reserve and KV cache."""
        memory = self.estimates.memory
        fixed = memory.weights[0] + memory.activations[0] + memory.reserved[0]
        return float(fixed) + max(self.kv_bytes, 0.0)

    def finding(self, rule: str, problem: str, *, cost: str, fix: str) -> Finding:
        """A finding about this pool."""
        return Finding(pool=self.section.name, rule=rule, problem=problem, cost=cost, fix=fix)


def pool_of(
    section: PoolSection,
    model: ModelSpec,
    group: NodeGroup,
    *,
    cluster: ClusterSpec,
    workload: Workload,
) -> Pool:
    """Estimate the layout of a pool on its group of nodes."""
    layout = section.layout.to_layout(replicas=1)
    used = section.engine_args.get("gpu_memory_utilization")
    headroom = 1.0 - float(used) if isinstance(used, int | float) else DEFAULT_HEADROOM
    serving = serving_of(section.serving)
    if section.serving is not None:
        workload = replace(workload, prefix_hit=section.serving.prefix_hit)
    return Pool(
        section=section,
        model=model,
        group=group,
        cluster=cluster,
        layout=layout,
        workload=workload,
        headroom=headroom,
        serving=serving,
        estimates=_estimate(
            model, group, layout, workload=workload, headroom=headroom, serving=serving
        ),
    )


def _estimate(
    model: ModelSpec,
    group: NodeGroup,
    layout: Layout,
    *,
    workload: Workload,
    headroom: float,
    serving: Serving,
) -> EstimateTable:
    table = LayoutTable.from_layouts([layout])
    return estimate_layouts(
        model,
        group,
        table,
        workload,
        concurrency=layout.max_num_seqs,
        headroom=headroom,
        serving=serving,
    )


def rules(pool: Pool) -> Iterator[Finding]:
    """Layout rules that one replica breaks."""
    for broken in explain(pool.model, pool.cluster, pool.layout):
        cost = "the engine does not start"
        if broken.rule == "domain":
            cost = _cross_domain_cost(pool)
        elif broken.rule == "packing":
            cost = "a replica is split across domains, or devices stay idle"
        elif broken.rule == "batch":
            cost = "ranks hold unequal batches and wait for the fullest"
        yield pool.finding(broken.rule, broken.message, cost=cost, fix=broken.fix)


def _cross_domain_cost(pool: Pool) -> str:
    reduced = float(pool.estimates.parts["all_reduce"][0])
    flat = replace(
        pool.group,
        nodes=1,
        devices_per_node=pool.group.devices,
        device=replace(pool.group.device, domain=pool.group.devices),
    )
    inside = _estimate(
        pool.model,
        flat,
        pool.layout,
        workload=pool.workload,
        headroom=pool.headroom,
        serving=pool.serving,
    )
    local = float(inside.parts["all_reduce"][0])
    return (
        f"all-reduces take {reduced * 1e3:.2f} ms of a decode step, {local * 1e3:.2f} ms if they "
        "stayed in the domain"
    )


def memory(pool: Pool) -> Iterator[Finding]:
    """Weights over the limit, a cache below the context, a batch beyond the cache."""
    held, layout = pool.estimates.memory, pool.layout
    budget, sequence = pool.kv_bytes, float(held.sequence_bytes[0])
    needed = held.limit - float(held.kv_budget[0])
    if budget < sequence:
        missing = sequence - budget
        yield pool.finding(
            "memory",
            f"{(needed + sequence) / GIB:.1f} GiB per device are needed (weights "
            f"{held.weights[0] / GIB:.1f}, KV of one sequence {sequence / GIB:.2f}), the limit "
            f"after {pool.headroom:.0%} headroom is {held.limit / GIB:.1f}.",
            cost=f"{missing / GIB:.1f} GiB too much: the engine does not start",
            fix="raise tp, pp or moe_ep, or use a quantised checkpoint.",
        )
        return
    length = pool.section.engine_args.get("max_model_len")
    tokens = int(budget / sequence * (pool.workload.isl + pool.workload.osl))
    if isinstance(length, int) and length > tokens:
        yield pool.finding(
            "kv_below_context",
            f"the KV cache holds {tokens} tokens per rank, max_model_len is {length}.",
            cost="the engine refuses to start",
            fix=f"lower max_model_len to {tokens}, or raise tp or pp.",
        )
    if isinstance(length, int) and length < pool.workload.isl + pool.workload.osl:
        yield pool.finding(
            "context_below_workload",
            f"max_model_len is {length}, the workload has {pool.workload.isl} + "
            f"{pool.workload.osl} tokens.",
            cost="requests of the planned size are refused",
            fix=f"raise it to {pool.workload.isl + pool.workload.osl}.",
        )
    most = int(budget // sequence) * layout.dp
    if layout.max_num_seqs > most:
        yield pool.finding(
            "batch_beyond_memory",
            f"max_num_seqs is {layout.max_num_seqs}, the KV cache holds {most} sequences of "
            f"{pool.workload.isl} + {pool.workload.osl} tokens.",
            cost=f"up to {layout.max_num_seqs - most} sequences are preempted and computed again",
            fix=f"lower max_num_seqs to {most - most % layout.dp or layout.dp}.",
        )


def pipeline(pool: Pool) -> Iterator[Finding]:
    """Too many stages, and what their bubbles cost."""
    layout = pool.layout
    if layout.pp <= MAX_STAGES:
        return
    parts = pool.estimates.parts
    step = float(pool.estimates.tpot_s[0])
    lost = float(parts["bubble"][0] + parts["send_recv"][0])
    yield pool.finding(
        "pipeline_depth",
        f"pp is {layout.pp}, more than {MAX_STAGES} stages.",
        cost=f"bubbles and hand-overs are {lost / step:.0%} of TPOT ({lost * 1e3:.1f} of "
        f"{step * 1e3:.1f} ms); {MAX_STAGES}+ stages were reported to cost 30 %",
        fix=f"use pp <= {MAX_STAGES} with more tp, or more replicas.",
    )


def latency(pool: Pool, slo: SloSection) -> Iterator[Finding]:
    """Bounds that the full batch misses."""
    if pool.section.name == "light":
        return  # the light pool serves degraded traffic, outside the SLO's promise
    bounds = (
        ("ttft", slo.ttft_s, pool.estimates.ttft_s, "fewer sequences or a larger chunk"),
        ("tpot", slo.tpot_s, pool.estimates.tpot_s, "fewer sequences, a smaller chunk or more tp"),
    )
    for name, limit, values, fix in bounds:
        value = float(values[0])
        if limit is not None and value > limit * (1.0 + 1e-9):
            yield pool.finding(
                f"slo_{name}",
                f"{name.upper()} is estimated at {value * 1e3:.1f} ms with "
                f"{pool.layout.max_num_seqs} in flight, the bound is {limit * 1e3:g} ms.",
                cost=f"{value / limit - 1:.0%} over: at full batch no request is within the SLO",
                fix=f"{fix}, or plan again.",
            )


def stale(pool: Pool) -> Iterator[Finding]:
    """An expectation that is not what the layout is estimated at today."""
    expected = pool.section.expected
    if expected is None:
        return
    now = float(pool.estimates.tpot_s[0])
    drift = now / expected.tpot_s - 1.0 if expected.tpot_s else np.inf
    if abs(drift) > STALE:
        yield pool.finding(
            "stale_expectation",
            f"the plan expects a TPOT of {expected.tpot_s * 1e3:.1f} ms, this layout is estimated "
            f"at {now * 1e3:.1f} ms.",
            cost=f"admission and scaling use rates that are {abs(drift):.0%} off",
            fix="plan again, or correct the layout that was edited.",
        )


def serving(pool: Pool) -> Iterator[Finding]:
    """What the plan may say and `shardwise up` does not do."""
    if pool.layout.dp > 1:
        finding = pool.finding(
            "serving",
            f"dp is {pool.layout.dp}: {DP_NOT_SERVED}.",
            cost="`shardwise up` refuses the plan",
            fix="plan with --max-dp 1, or run the exported engine arguments elsewhere.",
        )
        yield replace(finding, severity=Severity.WARNING)
    if pool.layout.dims:
        named = ", ".join(f"{name} '{dim.value}'" for name, dim in pool.layout.dims)
        plain = _estimate(
            pool.model,
            pool.group,
            replace(pool.layout, dims=()),
            workload=pool.workload,
            headroom=pool.headroom,
            serving=pool.serving,
        )
        finding = pool.finding(
            "dims_not_served",
            f"the layout has dims of its own ({named}): {DIMS_NOT_SERVED}.",
            cost=f"served without them, TPOT is {plain.tpot_s[0] * 1e3:.2f} ms instead of "
            f"{pool.estimates.tpot_s[0] * 1e3:.2f} ms",
            fix="plan in the `vllm` space, or keep the plan for an engine that takes dims.",
        )
        yield replace(finding, severity=Severity.WARNING)


def engine_args(pool: Pool) -> Iterator[Finding]:
    """Engine arguments that say another layout."""
    layout = pool.layout
    pairs = (
        *((argument, getattr(layout, degree)) for degree, argument in DEGREES),
        ("max_num_batched_tokens", layout.max_num_batched_tokens),
        ("max_num_seqs", max(1, -(-layout.max_num_seqs // layout.dp))),
    )
    for name, value in pairs:
        given = pool.section.engine_args.get(name, value)
        if given != value:
            yield pool.finding(
                "engine_args",
                f"engine_args.{name} is {given!r}, the layout says {value}.",
                cost="the engine runs another layout than the one estimated",
                fix=f"set it to {value}, or change the layout.",
            )
