"""How are percentiles, arrivals and xPyD said to a person? Beside the chosen layout.

Milliseconds here; seconds everywhere below.
"""

from __future__ import annotations

import math

from rich.console import Console

from cli.console import milliseconds, table
from cluster.costmodel.distributions import Latencies
from cluster.costmodel.open_loop import open_loop
from cluster.costmodel.percentiles import latencies_at
from cluster.model.layout import LayoutTable
from rl_search.disaggregation import Gain, gain_over
from rl_search.planner import PlanResult, RankedRow
from rl_search.request import PlanRequest
from rl_search.serving_args import DRAFT_METHODS


def print_percentiles(console: Console, request: PlanRequest, result: PlanResult) -> None:
    """Percentiles of the chosen layout with its batch full, and at the expected rate."""
    row = result.rows[0]
    found = latencies_at(
        request.model,
        row.group,
        row.layout,
        request.workload,
        estimates=row.estimates,
        index=row.index,
        coefficients=request.coefficients,
        serving=request.serving,
    )
    title = f"latencies with {row.layout.max_num_seqs} requests always in flight per replica"
    console.print()
    console.print(_table(title, found))
    if request.workload.rate is not None:
        _print_arrivals(console, request, result, row)
    for note in _notes(request):
        console.print(f"  note: {note}", soft_wrap=True, markup=False)


def print_disaggregation(console: Console, request: PlanRequest, result: PlanResult) -> None:
    """The best xPyD on the same devices, and what it gains over the chosen layout."""
    gain = gain_over(request, result)
    for line in disaggregation_lines(gain, result.rows[0]):
        console.print(line, soft_wrap=True, markup=False)


def disaggregation_lines(gain: Gain, row: RankedRow) -> list[str]:
    """What is said of `gain` beside `row`, the chosen layout."""
    where = f"{gain.group.devices} x {gain.group.device.name}"
    together = (
        f"  aggregated     {row.layout.describe()}, {row.layout.max_num_seqs} seqs: "
        f"{gain.aggregated_tokens_per_s:,.0f} tokens/s, "
        f"{row.estimates.tokens_per_s_per_user[row.index]:,.1f} tok/s/user, "
        f"mean TTFT {milliseconds(float(row.estimates.ttft_s[row.index]))} ms, "
        f"mean TPOT {milliseconds(float(row.estimates.tpot_s[row.index]))} ms"
    )
    lines = [f"\nprefill and decode apart, on the same {where}", together]
    found = gain.found
    if found is None:
        return [*lines, "  disaggregated  no xPyD keeps the bounds on these devices"]
    link = "scale-up link" if found.local else "network"
    lines += [
        f"  disaggregated  {found.describe()}, {found.decode.max_num_seqs} seqs, chunk "
        f"{found.prefill.max_num_batched_tokens}: {found.tokens_per_s:,.0f} tokens/s, "
        f"{found.tokens_per_s_per_user:,.1f} tok/s/user, TTFT {milliseconds(found.ttft_s)} ms "
        f"(KV over the {link} {milliseconds(found.transfer_s)}), "
        f"TPOT {milliseconds(found.tpot_s)} ms, prefill {found.utilisation:.0%} busy, "
        f"limited by {found.limit}",
        f"  gain           throughput x{gain.throughput:.2f}, tokens/s/user "
        f"x{gain.interactivity:.2f}; {found.considered:,} pairs considered",
        "  note: the plan file holds the aggregated layout; `shardwise up` does not serve xPyD",
    ]
    return lines


def _print_arrivals(
    console: Console, request: PlanRequest, result: PlanResult, row: RankedRow
) -> None:
    rate = request.workload.rate
    assert rate is not None
    replicas = max(result.plan.main.replicas.initial, 1)
    found = open_loop(
        request.model,
        row.group,
        LayoutTable.from_layouts([row.layout]),
        request.workload,
        rate=rate / replicas,
        headroom=request.headroom,
        coefficients=request.coefficients,
        serving=request.serving,
    )
    most = float(found.max_rate[0])
    share = f"{rate:g} requests/s at random over {replicas} replica(s)"
    if not bool(found.stable[0]):
        needed = math.ceil(min(rate / max(most, 1e-300), 1e15)) if most > 0.0 else 0
        enough = f"; {needed + (needed * most <= rate):,} are needed" if needed else ""
        console.print(
            f"  {share}: unstable, a replica sustains {most:.3g} requests/s{enough}", markup=False
        )
        return
    console.print(_table(f"latencies with {share}", found.latencies))
    console.print(
        f"  {float(found.in_flight[0]):,.1f} requests in flight per replica, "
        f"{float(found.utilisation[0]):.0%} of the {most:.3g} requests/s it sustains",
        markup=False,
    )


def _table(title: str, latencies: Latencies) -> object:
    made = table(title, "ms", "mean", "p50", "p90", "p99")
    for name, figures in (
        ("TTFT", latencies.ttft),
        ("TPOT", latencies.tpot),
        ("ITL", latencies.itl),
    ):
        values = (figures.mean, figures.p50, figures.p90, figures.p99)
        made.add_row(name, *(milliseconds(float(value[0])) for value in values))
    return made


def _notes(request: PlanRequest) -> list[str]:
    serving, notes = request.serving, []
    if serving.backend != "vllm":
        notes.append(
            f"estimates are for {serving.backend}; the plan's engine arguments are vLLM's, which "
            "is what `shardwise up` serves"
        )
    if serving.speculation is not None:
        notes.append(
            f"drafts by {request.drafter or DRAFT_METHODS[0]}: a step keeps "
            f"{serving.speculation.accepted:.2f} of {serving.speculation.drafts + 1} tokens; the "
            "memory of a draft model is not counted"
        )
    return notes
