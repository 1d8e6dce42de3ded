"""The tables of the search comparison, from runs as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

Run = dict[str, Any]

METHODS = ("ppo", "random", "anneal", "genetic", "tpe")
NEAR = 0.01  # of the optimum
Variant = tuple[str, dict[str, Any], dict[str, Any]]

# Article A, table 1: tau, calls used of 5,000, tokens/s, of the Megatron heuristic.
ARTICLE_TAU = {
    "tau 0.8": (3200, 142, 0.92),
    "tau 0.9": (3800, 156, 1.05),
    "tau 0.95": (4000, 158, 1.06),
}
_PLAIN: dict[str, Any] = {"top": 1.0}
TAUS: tuple[Variant, ...] = tuple(
    (f"tau {tau:g}" if tau <= 1.0 else "no tau", {"tau": tau}, {}) for tau in (0.8, 0.9, 0.95, 2.0)
) + tuple(
    (
        f"plain, tau {tau:g}" if tau <= 1.0 else "plain, no tau",
        _PLAIN | {"tau": tau, "entropy": 0.01},
        {},
    )
    for tau in (0.8, 0.9, 0.95, 2.0)
)
ABLATIONS: tuple[Variant, ...] = (
    ("", {}, {}),
    ("one head for all", {}, {"shared_head": True}),
    ("no elites", {}, {"copying": False, "blind": True}),
    ("elites seen, not copied", {}, {"copying": False}),
    ("heads apart", {}, {"autoregressive": False}),
    ("no chunks", {"chunks": 1}, {}),
    ("all of a batch", {"top": 1.0}, {}),
    ("untrained", {"learning_rate": 0.0}, {}),
    ("curriculum", {"curriculum": True}, {}),
)


def optimum(runs: Iterable[Run], case: str) -> float:
    """The best of anything on a case: the exact answer is that of a model made linear, to 0.1 %."""
    return max(run["best"] for run in runs if run["case"] == case and run["best"] is not None)


def regret(run: Run, best: float) -> float:
    """Share of the optimum that a run missed."""
    return 1.0 if run["best"] is None else 1.0 - float(run["best"]) / best


def calls_to(run: Run, best: float, *, near: float = NEAR) -> int | None:
    """Calls until within `near` of the optimum, None where it never came."""
    goal = best * (1.0 - near)
    return next((int(calls) for calls, value in run["curve"] if value >= goal), None)


def print_comparison(runs: Sequence[Run], *, budget: int) -> None:
    """A table per case."""
    for case in dict.fromkeys(run["case"] for run in runs):
        own = [run for run in runs if run["case"] == case]
        best = optimum(own, case)
        print(f"\n{case}: optimum {best:.5g} tokens/s/device")
        for name in ("exact", "heuristic"):
            run = next(run for run in own if run["method"] == name)
            if run["best"] is None:
                print(f"  {name:<18} nothing satisfies the question")
                continue
            print(
                f"  {name:<18} {run['best']:.5g} (regret {regret(run, best):.2%}), "
                f"{run['calls']:,} calls, {run['seconds']:.1f} s: {run['layout']}"
            )
        print(
            f"  {'method':<18} {'regret median':>13} {'worst':>8} {'within 1 %':>11} "
            f"{'calls to 1 %, median':>21} {'seconds':>8}"
        )
        for method, calls in [*((m, budget) for m in METHODS), ("random", 10 * budget)]:
            some = [r for r in own if r["method"] == method and r["budget"] == calls]
            if some:
                label = method if calls == budget else f"{method} x 10"
                print(_row(label, some, best))


def _row(label: str, runs: Sequence[Run], best: float) -> str:
    regrets = [regret(run, best) for run in runs]
    reached = [calls_to(run, best) for run in runs]
    some = sorted(calls for calls in reached if calls is not None)
    # A run that never came near took more than its budget.
    typical = [*some, *([None] * (len(reached) - len(some)))][(len(reached) - 1) // 2]
    told = f"> {runs[0]['budget']:,}" if typical is None else f"{typical:,}"
    return (
        f"  {label:<26} {median(regrets):>9.3%} {max(regrets):>8.3%} "
        f"{len(some):>6} of {len(runs)} {told:>17} {median(r['seconds'] for r in runs):>8.1f}"
    )


def print_tau(runs: Sequence[Run]) -> None:
    """Calls used, what was reached, of the heuristic; the article's beside it."""
    for case in dict.fromkeys(run["case"] for run in runs):
        own = [run for run in runs if run["case"] == case]
        best = optimum(own, case)
        rule = next(run["best"] for run in own if run["method"] == "heuristic")
        print(f"\n{case} (heuristic {'none' if rule is None else f'{rule:.5g}'})")
        print(
            f"  {'':<18} {'calls used':>10} {'saved':>7} {'tokens/s/device':>16} {'regret':>8} "
            f"{'of heuristic':>13}   article A: calls of 5,000, of heuristic"
        )
        for label in dict.fromkeys(run["variant"] for run in own if run["method"] == "ppo"):
            some = [r for r in own if r["method"] == "ppo" and r["variant"] == label]
            used, value = median(r["calls"] for r in some), median(r["best"] or 0.0 for r in some)
            share = "" if rule is None else f"{value / rule:.3f}x"
            theirs = ARTICLE_TAU.get(label)
            beside = "" if theirs is None else f"{theirs[0]:,}, {theirs[2]:.2f}x"
            print(
                f"  {label:<18} {used:>10,.0f} {1.0 - used / some[0]['budget']:>7.0%} "
                f"{value:>16.5g} {1.0 - value / best:>8.2%} {share:>13}   {beside}"
            )


def print_ablations(runs: Sequence[Run]) -> None:
    """What is lost without each piece."""
    for case in dict.fromkeys(run["case"] for run in runs):
        own = [run for run in runs if run["case"] == case]
        best = optimum(own, case)
        print(
            f"\n{case}\n  {'without':<26} {'median':>9} {'worst':>8} {'within 1 %':>11} "
            f"{'calls to 1 %':>17} {'seconds':>8}"
        )
        for label in dict.fromkeys(run["variant"] for run in own if run["method"] == "ppo"):
            some = [r for r in own if r["method"] == "ppo" and r["variant"] == label]
            print(_row(label or "(nothing left out)", some, best))
