"""`shardwise replan`: move the running service to a better layout, without losing a request.

Exit code 0: it serves under the new layout, or nothing better was found. 2: bad input, no room, or
a move is under way. 3: no layout fits what is served now. 4: no service runs here, or the move was
rolled back, with the reason.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from autoscaler.snapshot import WorkloadObservation
from cli.console import out
from cli.replan_report import layouts_table, print_steps, workload_table
from cli.status import fetch
from cluster.errors import InputError, UnavailableError
from cluster.model.plan import Plan, load_plan
from serving.instance import Instance, Progress
from serving.layout import layout_desk
from serving.layout.replan_search import search
from serving.layout.replanner import verdict_of, workload_of
from serving.layout.succession import successor
from serving.settings.config import load_serve_config
from serving.sources import resolve_sources, with_sources

_POLL_S = 0.25
_ANSWER_S = 60.0


def command(
    plan: Annotated[
        Path | None, typer.Option(help="Move to this plan instead of searching one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
    ] = False,
    allow_below_floor: Annotated[
        bool,
        typer.Option(
            "--allow-below-floor",
            help="Where there is no room, let requests wait in line while layouts change.",
        ),
    ] = False,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="How long to follow.")] = 3600.0,
) -> None:
    """Find a better layout, or take a given one, and move to it."""
    instance, console = Instance.default(), out()
    progress = _ready(instance)
    running = _resolved(load_plan(instance.plan_path))
    wanted = (
        _better(instance, running, progress, console=console)
        if plan is None
        else _resolved(load_plan(plan))
    )
    if wanted is None:
        return
    wanted = successor(running, wanted)
    method: layout_desk.Method = "preview_move" if dry_run else "begin_move"
    order = layout_desk.order(instance, wanted, method=method, below_floor=allow_below_floor)
    said = _answer(instance, order)
    print_steps(console, said["steps"])
    if not dry_run:
        _follow(instance, said["number"], console=console, timeout_s=timeout_s)


def _ready(instance: Instance) -> Progress:
    """Of the service that runs here. Raises UnavailableError if none does."""
    progress = instance.progress()
    if progress is None or instance.head() is None:
        raise UnavailableError("no service is running here. Fix: `shardwise up`.")
    if progress.phase != "ready":
        raise UnavailableError(f"the service is {progress.phase}: {progress.doing}. Fix: wait.")
    return progress


def _resolved(plan: Plan) -> Plan:
    return with_sources(plan, resolve_sources(plan))


def _better(
    instance: Instance, running: Plan, progress: Progress, *, console: Console
) -> Plan | None:
    """A plan that is worth a move for what is served now; None if there is none."""
    replan = fetch(progress)["replan"]
    seen = replan["seen"]
    console.print(workload_table(replan))
    if seen is None or seen["prompt_tokens"] is None or seen["output_tokens"] is None:
        raise UnavailableError(
            "no answer has come to its end yet, so there is nothing to plan for. Fix: wait for "
            "requests, or pass a plan with --plan."
        )
    if seen["requests"] < replan["min_requests"]:
        console.print(
            f"only {seen['requests']:.0f} requests have been seen, below {replan['min_requests']} "
            "the means say little"
        )
    with console.status("searching"):
        found = search(running, workload_of(running, _observation(seen)))
    section = load_serve_config(instance.config_path).steering.replan
    console.print(layouts_table(running, found))
    console.print(verdict_of(found, min_gain=section.min_gain), markup=False)
    return found.plan if found.worth_a_move(min_gain=section.min_gain) else None


def _observation(seen: dict[str, Any]) -> WorkloadObservation:
    values: dict[str, Any] = {
        name: float("nan") if value is None else value for name, value in seen.items()
    }
    return WorkloadObservation(**values)


def _answer(instance: Instance, order: str) -> dict[str, Any]:
    """The steps, and the move's number. Raises the controller's error."""
    until_s = time.monotonic() + _ANSWER_S
    while (said := layout_desk.answer(instance, order)) is None:
        if time.monotonic() > until_s or instance.head() is None:
            raise UnavailableError(
                f"the controller has not answered within {_ANSWER_S:.0f} s. Fix: look at "
                f"{instance.output_path}."
            )
        time.sleep(_POLL_S)
    if "error" in said:
        kind = InputError if said["exit_code"] == InputError.exit_code else UnavailableError
        raise kind(said["error"])
    return said


def _follow(instance: Instance, number: int, *, console: Console, timeout_s: float) -> None:
    """Tell each step until the move is over. Raises UnavailableError if it was rolled back."""
    started_s, told = time.monotonic(), 0
    with console.status("moving") as status:
        while True:
            move = layout_desk.move(instance)
            if move is None or move["number"] != number:
                if told:
                    raise UnavailableError(
                        "the controller was restarted before a new replica had been asked for; the "
                        "old layout serves. Fix: order the move again."
                    )
                move = {"phase": "", "steps": []}
            for _, doing in move["steps"][told:]:
                spent_s = time.monotonic() - started_s
                status.update(doing)
                console.print(f"[{spent_s:4.0f} s] {doing}", markup=False)
            told = len(move["steps"])
            if move["phase"] == "done":
                return
            if move["phase"] == "rolled back":
                raise UnavailableError(
                    f"the move was rolled back, {move['doing']}. Because: {move['reason']}."
                )
            if instance.head() is None:
                raise UnavailableError("the service has ended.")
            if time.monotonic() - started_s > timeout_s:
                raise UnavailableError(
                    f"not over after {timeout_s:.0f} s; it goes on, see `shardwise status`."
                )
            time.sleep(_POLL_S)
