"""How are a workload, a plan that was found, and a move told?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.console import milliseconds, table
from cluster.model.plan import Plan
from rl_search.replan import Found, Worth

_LATEST = 3
_QUANTITIES = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "requests_per_s": "requests/s",
    "ttft_s": "TTFT ms (without the line)",
    "tpot_s": "TPOT ms",
}


def status_lines(replan: dict[str, Any], *, now_s: float) -> Iterator[str]:
    """What `status` says: the last move and the last proposal, if there were any."""
    move, proposal = replan["move"], replan["proposal"]
    if move is not None:
        yield f"move        {move['old']} to {move['new']}: {move['phase']}"
        if move["reason"]:
            yield f"  because   {move['reason']}"
        for time_s, doing in move["steps"][-_LATEST:]:
            yield f"  {now_s - time_s:5.0f} s ago  {doing}"
    if replan["searching"]:
        yield "re-plan     a search is under way"
    if proposal is not None:
        yield f"re-plan     {proposal['verdict']} ({now_s - proposal['time_s']:.0f} s ago)"
        yield f"  because   {proposal['reason']}"


def workload_table(replan: dict[str, Any]) -> Table:
    """What is seen beside what was planned."""
    seen, planned = replan["seen"] or {}, replan["planned"]
    made = table("workload", "", "planned", "seen", "ratio", "drift")
    for name, words in _QUANTITIES.items():
        ratio = replan["ratios"].get(name)
        outside = ratio is not None and not 1 / replan["band"] <= ratio <= replan["band"]
        made.add_row(
            words,
            _quantity(name, planned[name] or None),
            _quantity(name, seen.get(name)),
            "not compared" if ratio is None else f"{ratio:.2f}",
            "yes" if outside else "",
        )
    return made


def layouts_table(running: Plan, found: Found) -> Table:
    """The layout that runs and the one that was found, under the same workload."""
    made = table(
        "layouts under the workload seen",
        *("", "TTFT ms", "TPOT ms", "goodput/s", "devices", "goodput/s/device"),
    )
    for what, worth, plan in (("runs", found.old, running), ("found", found.new, found.plan)):
        made.add_row(f"{what}: {worth.layout}", *_worth(worth, plan))
    return made


def print_steps(console: Console, steps: list[str]) -> None:
    """The moves, in order."""
    console.print("moves")
    for number, step in enumerate(steps, start=1):
        console.print(f"  {number:2}  {step}", markup=False)


def _worth(worth: Worth, plan: Plan) -> tuple[str, ...]:
    return (
        milliseconds(worth.ttft_s),
        milliseconds(worth.tpot_s),
        f"{worth.goodput_rps:.3g}" if worth.goodput_rps else "0, misses the bounds",
        f"{worth.devices} x {plan.main.replicas.initial}",
        f"{worth.goodput_per_device:.3g}",
    )


def _quantity(name: str, value: float | None) -> str:
    if value is None:
        return "?"
    return milliseconds(value) if name.endswith("_s") and "per" not in name else f"{value:.4g}"
