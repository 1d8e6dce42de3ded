"""`shardwise replay`: does the controller still decide what a log says it decided?

Exit code 0: identical. 1: some tick differs. 2: the file is no decision log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoscaler.replay import Difference, replay
from autoscaler.snapshot import Decision
from cluster.errors import ConfigError


def command(
    log: Annotated[Path, typer.Argument(help="Decision log (JSON lines) the controller wrote.")],
    limit: Annotated[
        int, typer.Option(min=0, help="How many differing ticks to print, the first ones.")
    ] = 10,
) -> None:
    """Run a recorded decision log through the controller again and compare."""
    try:
        with log.open(encoding="utf-8") as lines:
            result = replay(lines, source=str(log))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            source=str(log),
            field="",
            problem=f"cannot be read ({error}).",
            fix="pass the decision log that the controller wrote.",
        ) from error
    differing = len(result.differences)
    typer.echo(
        f"{log}: {result.ticks} ticks, {result.decisions} decisions, {result.runs} run(s): "
        + ("replay is identical." if result.identical else f"{differing} tick(s) differ.")
    )
    for difference in result.differences[:limit]:
        _print(difference)
    if differing > limit:
        typer.echo(f"... {differing - limit} more; raise --limit to see them.")
    if differing:
        raise typer.Exit(1)


def _print(difference: Difference) -> None:
    typer.echo(f"line {difference.line}, t = {difference.now_s:.3f} s")
    for sign, decisions, tier in (
        ("-", difference.recorded, difference.recorded_tier),
        ("+", difference.replayed, difference.replayed_tier),
    ):
        what = "recorded" if sign == "-" else "replayed"
        typer.echo(f"  {sign} {what}: tier {tier.name}, {len(decisions)} decision(s)")
        for decision in decisions:
            typer.echo(f"  {sign}   {_describe(decision)}")


def _describe(decision: Decision) -> str:
    numbers = ", ".join(f"{name} {value:.6g}" for name, value in decision.numbers)
    text = f"{decision.action.value} {decision.pool} {decision.value}: {decision.reason}"
    return f"{text} ({numbers})" if numbers else text
