"""What does a run leave behind for machines and for the report? One JSON document.

{"schema": 1, "method", "seed", "budget", "calls", "asked", "seconds", "unit", "space", "best":
{"value", "calls", "layout", "choices", "plan", "sentences"}, "heuristic", "exact", "curve":
[[calls, value], ...], "confidence": [{"calls", "chunk", "heads"}], "pareto"}

Invariant: `best` is what was shipped: never worse than the heuristic's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from cli.search_options import Fidelity
from cli.search_run import Judge, Result
from cluster.model.layout import Layout
from cluster.model.plan import Plan
from rl_search.archive import Found
from rl_search.dims_gains import gains
from rl_search.evaluator import estimate_own
from rl_search.exact import Evaluated, evaluate, ranked
from rl_search.pareto import frontier
from rl_search.question import score
from rl_search.request import PlanRequest
from rl_search.runs import Order
from rl_search.space import ActionSpace
from rl_search.words import sentences

AFFORDABLE = 500_000  # layouts that an exact answer takes seconds for


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The exact optimum by the cost model."""

    value: float
    layout: str
    strategies: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What is shipped, and the exact optimum where it was asked for."""

    winner: Found
    layout: Layout
    plan: Plan
    exact: Exact | None
    unit: str


def worth_comparing(space: ActionSpace, judge: Judge, *, asked: bool | None) -> bool:
    """Whether to look for the exact optimum: it exists for the cost model only."""
    if judge.fidelity is not Fidelity.COST_MODEL:
        return False
    return space.layouts <= AFFORDABLE if asked is None else asked


def exact_of(request: PlanRequest, space: ActionSpace) -> Exact | None:
    """The best of all strategies, None where none satisfies the request."""
    everything: Evaluated = evaluate(space.question)
    best = ranked(everything, request.priority, top=1)
    if not best:
        return None
    return Exact(
        value=float(score(everything.estimates, request.priority)[best[0]]),
        layout=everything.table.row(best[0]).describe(),
        strategies=everything.strategies,
    )


def document(
    request: PlanRequest,
    order: Order,
    space: ActionSpace,
    result: Result,
    compared: Compared,
    *,
    fidelity: Fidelity,
    seconds: float,
) -> dict[str, Any]:
    """The whole run."""
    archive, winner = result.outcome.archive, compared.winner
    exact, heuristic = compared.exact, result.heuristic
    return {
        "schema": 1,
        "model": request.model.name,
        "cluster": request.cluster_text or request.cluster.name,
        "method": order.method,
        "fidelity": fidelity.value,
        "seed": order.seed,
        "budget": order.budget,
        "calls": archive.calls,
        "asked": archive.asked,
        "seconds": seconds,
        "nodes": result.outcome.nodes,
        "unit": compared.unit,
        "space": {
            "described": space.described(),
            "grid": space.grid,
            "size": space.size,
            "heads": [
                {
                    "name": head.name,
                    "values": [head.spelt(index) for index in range(len(head.values))],
                }
                for head in space.heads
            ],
        },
        "best": {
            "value": winner.value,
            "calls": winner.calls,
            "layout": compared.layout.describe(),
            "choices": {
                head.name: head.spelt(choice)
                for head, choice in zip(space.heads, winner.action, strict=True)
            },
            "plan": json.loads(compared.plan.dumps()),
            "sentences": _sentences(request, space, compared.layout),
            "from_heuristic": winner is heuristic,
        },
        "heuristic": None
        if heuristic is None
        else {
            "value": heuristic.value,
            "layout": space.layout(heuristic.action).describe(),
            "calls": heuristic.calls,
        },
        "exact": None
        if exact is None
        else {"value": exact.value, "layout": exact.layout, "strategies": exact.strategies},
        "curve": [[found.calls, found.value] for found in archive.curve],
        "confidence": [
            {
                "calls": sure.calls,
                "chunk": sure.chunk,
                "heads": {
                    head.name: one for head, one in zip(space.heads, sure.confidence, strict=True)
                },
            }
            for sure in result.outcome.sure
        ],
        "pareto": {"points": _pareto(space, result, compared)},
    }


def _sentences(request: PlanRequest, space: ActionSpace, layout: Layout) -> list[str]:
    if not layout.dims:
        return []
    return list(sentences(request.model, layout, gained=gains(space.question, layout)))


def _pareto(space: ActionSpace, result: Result, compared: Compared) -> list[dict[str, Any]]:
    """Throughput against interactivity of what was judged and satisfies all, by the cost model."""
    archive = result.outcome.archive
    rows = np.flatnonzero(archive.judged.ok) if archive.memory else np.zeros(0, dtype=np.int64)
    table = space.decode(archive.actions[rows]) if len(rows) else None
    points: list[dict[str, Any]] = []
    if table is not None:
        estimates = estimate_own(space.question, table)
        users, devices = estimates.tokens_per_s_per_user, estimates.tokens_per_s_per_device
        for index in frontier(users, devices).tolist():
            points.append(_point(table.row(index), users[index], devices[index], chosen=False))
    own = space.decode(np.asarray([compared.winner.action], dtype=np.int64))
    made = estimate_own(space.question, own)
    points = [p for p in points if p["layout"] != _named(own.row(0))]
    points.append(
        _point(
            own.row(0), made.tokens_per_s_per_user[0], made.tokens_per_s_per_device[0], chosen=True
        )
    )
    return sorted(points, key=lambda point: float(point["tokens_per_s_per_user"]))


def _point(layout: Layout, user: float, device: float, *, chosen: bool) -> dict[str, Any]:
    return {
        "tokens_per_s_per_user": float(user),
        "tokens_per_s_per_device": float(device),
        "layout": _named(layout),
        "chosen": chosen,
    }


def _named(layout: Layout) -> str:
    return (
        f"{layout.describe()}, batch {layout.max_num_seqs}, chunk {layout.max_num_batched_tokens}"
    )
