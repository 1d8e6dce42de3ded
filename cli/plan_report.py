"""How is a planning result said to a person? What was understood, rejected, ranked, chosen.

Milliseconds and GiB here; seconds and bytes everywhere below.
"""

from __future__ import annotations

import math

from rich.console import Console

from cli.console import count, gib, milliseconds, table
from cli.dims_report import dims_lines
from cluster.costmodel.steps import Parts
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import PoolSection
from rl_search.planner import PlanResult, RankedRow
from rl_search.pool_checks import DP_NOT_SERVED
from rl_search.question import Priority
from rl_search.request import PlanRequest


def print_understood(console: Console, request: PlanRequest) -> None:
    """The model, cluster, workload and bounds as the planner reads them."""
    console.print(f"[bold]model[/bold]    {_model(request.model)}")
    if request.light is not None:
        console.print(f"[bold]light[/bold]    {_model(request.light)}")
    for group in request.cluster.groups:
        device = group.device
        price = "no price known" if device.price_per_hour is None else f"${device.price_per_hour}/h"
        console.print(
            f"[bold]cluster[/bold]  {group.nodes} x {group.devices_per_node} {device.name}: "
            f"{gib(device.memory_bytes)} GiB, {device.memory_bandwidth / 1e12:.3g} TB/s, "
            f"scale-up domain of {group.domain_devices}, {price}"
        )
    workload, slo = request.workload, request.slo
    bounds = [
        f"{name} <= {milliseconds(limit)} ms"
        for name, limit in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s))
        if limit is not None
    ]
    console.print(
        f"[bold]asked[/bold]    {workload.isl} tokens in, {workload.osl} out; "
        f"{', '.join(bounds) or 'no latency bound'}; priority {request.priority.value}\n"
    )


def print_rejections(console: Console, result: PlanResult, *, seconds: float) -> None:
    """How many layouts each rule removed, and the nearest miss."""
    rate = result.considered / seconds if seconds > 0.0 else math.inf
    console.print(
        f"{result.considered:,} layouts considered in {seconds:.2f} s ({rate:,.0f}/s), "
        f"{result.satisfying:,} satisfy everything"
    )
    if result.strategies > result.considered:
        console.print(
            f"they stand for {result.strategies:.3g} strategies: every choice of dims per fused "
            "operator, the best of each layout found exactly"
        )
    for entry in result.rejections:
        miss = f"  nearest: {entry.nearest}" if entry.nearest else ""
        console.print(f"  {entry.count:>9,} rejected by {entry.rule}{miss}", markup=False)
    console.print()


def print_ranking(console: Console, result: PlanResult, *, priority: Priority) -> None:
    """The best strategies, each at its best batch and chunk."""
    made = table(
        f"ranked by {priority.value}",
        *("layout", "seqs", "chunk", "TTFT ms", "TPOT ms", "tok/s/dev", "tok/s/user"),
        *("KV tokens", "GiB/dev", "$/Mtok"),
    )
    for row in result.rows:
        made.add_row(*_cells(row))
    console.print(made)
    if any(row.layout.dims for row in result.rows):
        console.print("+dims: operators cut otherwise than by column, then row")
    console.print()


def print_chosen(console: Console, result: PlanResult) -> None:
    """The chosen layout, where its time goes, and what each pool becomes."""
    row = result.rows[0]
    console.print(f"[bold]chosen[/bold]   {row.layout.describe()}")
    console.print(f"  TPOT: {_parts(row, row.estimates.parts)}")
    console.print(f"  TTFT: {_parts(row, row.estimates.ttft_parts)}")
    for line in dims_lines(row):
        console.print(f"  {line}", markup=False)
    expected = result.plan.main.expected
    if expected is not None:
        sizes = ", ".join(f"{name} {gib(size)}" for name, size in expected.memory_bytes.items())
        console.print(
            f"  memory per device, GiB: {sizes} ({expected.kv_capacity_tokens:,} tokens a replica)"
        )
    console.print(f"  estimate: {row.estimates.provenance}")
    for pool in result.plan.pools:
        console.print(f"  {_pool(pool)}")
    short = _too_slow(result.plan.main, rate=result.plan.workload.rate)
    if short:
        console.print(f"  warning: {short}", soft_wrap=True)
    if row.layout.dp > 1:
        console.print(f"  note: {DP_NOT_SERVED} (--max-dp 1)")


def _model(model: ModelSpec) -> str:
    experts = f", {model.experts_per_token} of {model.experts} experts" if model.experts else ""
    return (
        f"{model.name} ({model.architecture}): {count(model.params)} parameters, "
        f"{count(model.active_params)} active, {gib(model.weight_bytes)} GiB, "
        f"{model.num_layers} layers, {model.heads} heads, {model.kv_heads} KV heads{experts}, "
        f"{model.kv_bytes_per_token / 1024:.1f} KiB of KV cache per token"
    )


def _cells(row: RankedRow) -> tuple[str, ...]:
    made, index = row.estimates, row.index
    cost = float(made.cost_per_million_tokens[index])
    memory = made.memory
    kv = memory.sequence_bytes[index] * made.running[index] / row.layout.dp
    used = memory.weights[index] + memory.activations[index] + memory.reserved[index] + kv
    return (
        row.layout.describe() + (" +dims" if row.layout.dims else ""),
        f"{row.layout.max_num_seqs}",
        f"{row.layout.max_num_batched_tokens}",
        milliseconds(float(made.ttft_s[index])),
        milliseconds(float(made.tpot_s[index])),
        f"{made.tokens_per_s_per_device[index]:,.1f}",
        f"{made.tokens_per_s_per_user[index]:,.1f}",
        f"{made.kv_capacity_tokens[index]:,.0f}",
        gib(float(used)),
        "-" if math.isnan(cost) else f"{cost:.3f}",
    )


def _parts(row: RankedRow, parts: Parts) -> str:
    values = {name: float(part[row.index]) for name, part in parts.items()}
    whole = sum(values.values())
    shown = sorted(values.items(), key=lambda item: -item[1])
    text = ", ".join(
        f"{name} {milliseconds(value)}" for name, value in shown if value > 0.005 * whole
    )
    return f"{milliseconds(whole)} ms = {text}"


def _too_slow(pool: PoolSection, *, rate: float | None) -> str | None:
    """What is said where the most replicas carry less than the expected rate."""
    if rate is None or pool.expected is None or pool.expected.goodput_rps <= 0.0:
        return None
    goodput, most = pool.expected.goodput_rps, pool.replicas.maximum
    if most * goodput >= rate:
        return None
    needed = math.ceil(min(rate / goodput, 1e15))  # the quotient may be infinite
    return (
        f"{rate:g} requests/s are expected, the maximum of {most} replica(s) carries "
        f"{most * goodput:.3g}; {needed:,} are needed"
    )


def _pool(pool: PoolSection) -> str:
    bounds = pool.replicas
    return (
        f"pool {pool.name}: {pool.model.name}, replicas {bounds.minimum}..{bounds.maximum}, "
        f"starts with {bounds.initial}"
    )
