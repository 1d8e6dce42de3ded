"""What does `search` say? What is asked, and what was found beside heuristic and optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from cli.console import milliseconds
from rl_search.planner import RankedRow
from rl_search.request import PlanRequest
from rl_search.runs import Order
from rl_search.space import ActionSpace


def print_asked(
    console: Console, request: PlanRequest, order: Order, space: ActionSpace, *, unit: str
) -> None:
    """The question, the space and the method."""
    work = request.workload
    console.print(
        f"{request.model.name} on {request.cluster_text or request.cluster.name}, "
        f"{work.isl} in / {work.osl} out, most {unit}"
    )
    console.print(f"`{request.space.value}` space: {space.described()}")
    spent = "looks at everything" if order.method == "exact" else f"{order.budget:,} calls"
    console.print(f"method {order.method}, {spent}, seed {order.seed}")


def print_found(console: Console, made: Mapping[str, Any], *, row: RankedRow) -> None:
    """The winner, its expectations, and how it compares."""
    best, heuristic, exact = made["best"], made["heuristic"], made["exact"]
    console.print(
        f"\nbest: {best['layout']}, batch {row.layout.max_num_seqs}, chunk "
        f"{row.layout.max_num_batched_tokens}: {best['value']:.4g} {made['unit']} "
        f"({made['calls']:,} calls, {made['asked']:,} proposals on {made['nodes']} node(s), "
        f"{made['seconds']:.1f} s)"
    )
    estimates, index = row.estimates, row.index
    console.print(
        "  by the cost model at a full batch: "
        f"TTFT {milliseconds(float(estimates.ttft_s[index]))} ms, "
        f"TPOT {milliseconds(float(estimates.tpot_s[index]))} ms, "
        f"{float(estimates.tokens_per_s_per_device[index]):,.4g} tokens/s/device"
    )
    for sentence in best["sentences"]:
        console.print(f"  {sentence}", markup=False)
    if heuristic is None:
        console.print("heuristic: has no strategy that satisfies the request")
    elif best["from_heuristic"]:
        console.print(
            "the heuristic's strategy is at least as good as what was found, and is what is written"
        )
    else:
        gain = best["value"] / heuristic["value"] - 1.0
        console.print(
            f"heuristic: {heuristic['value']:.4g}, {heuristic['layout']}; the best is {gain:+.1%}"
        )
    if exact is not None:
        regret = 1.0 - best["value"] / exact["value"]
        console.print(
            f"exact optimum: {exact['value']:.4g}, {exact['layout']}, of "
            f"{exact['strategies']:.3g} strategies; regret {regret:.2%}"
        )
