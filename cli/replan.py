"""`shardwise replan`: move the running service to another layout, without losing a request.

Exit code 0: it serves under the new layout, or nothing better was found. 2: bad input, no room, or
a move is under way. 4: no service runs here, or the move was rolled back, with the reason.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from cli.console import out
from cluster.errors import InputError, UnavailableError
from cluster.model.plan import Plan, load_plan
from serving import layout_desk
from serving.instance import Instance
from serving.sources import resolve_sources, with_sources
from serving.succession import successor

_POLL_S = 0.25
_ANSWER_S = 60.0


def command(
    plan: Annotated[
        Path | None, typer.Option(help="Move to this plan instead of searching one.")
    ] = None,
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
    instance = Instance.default()
    running = _running(instance)
    assert plan is not None
    wanted = successor(running, _resolved(load_plan(plan)))
    console = out()
    order = layout_desk.order(instance, wanted, below_floor=allow_below_floor)
    said = _answer(instance, order)
    for number, step in enumerate(said["steps"], start=1):
        console.print(f"{number:3}  {step}", markup=False)
    _follow(instance, said["number"], console=console, timeout_s=timeout_s)


def _running(instance: Instance) -> Plan:
    """The plan that is served here. Raises UnavailableError if none is."""
    progress = instance.progress()
    if progress is None or instance.head() is None:
        raise UnavailableError("no service is running here. Fix: `shardwise up`.")
    if progress.phase != "ready":
        raise UnavailableError(f"the service is {progress.phase}: {progress.doing}. Fix: wait.")
    return _resolved(load_plan(instance.plan_path))


def _resolved(plan: Plan) -> Plan:
    return with_sources(plan, resolve_sources(plan))


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
            if move is None or move["number"] != number:  # not yet told of
                move = {"phase": "", "steps": []}
            for _, doing in move["steps"][told:]:
                spent_s = time.monotonic() - started_s
                status.update(doing)
                console.print(f"[{spent_s:4.0f} s] {doing}", markup=False)
            told = max(told, len(move["steps"]))
            if move["phase"] == "done":
                return
            if move["phase"] == "rolled back":
                raise UnavailableError(
                    f"the move was rolled back, {move['doing']}: {move['reason']}."
                )
            if instance.head() is None:
                raise UnavailableError("the service has ended.")
            if time.monotonic() - started_s > timeout_s:
                raise UnavailableError(
                    f"not over after {timeout_s:.0f} s, it goes on: `shardwise status`."
                )
            time.sleep(_POLL_S)
