"""`shardwise replay`: does the controller still decide what a log says, and what would another do?

Without `--policy`, exit code 0: identical, 1: some tick differs. With it 0, whatever it would have
done. 2 in both cases: the file is no decision log, or a name or setting is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from autoscaler.closed_loop import closed_loop
from autoscaler.forecast import methods
from autoscaler.need import SCALING_POLICIES
from autoscaler.replay import Difference, replay
from autoscaler.what_if import runs_of, what_if
from cli.other_policy import change_of
from cli.replay_report import decisions_text, print_what_if
from cluster.errors import ConfigError


def command(
    log: Annotated[Path, typer.Argument(help="Decision log (JSON lines) the controller wrote.")],
    limit: Annotated[
        int, typer.Option(min=0, help="How many differing ticks to print, the first ones.")
    ] = 10,
    policy: Annotated[
        str | None,
        typer.Option(
            help="What would this one have done? A forecaster "
            f"({', '.join(methods())}), a scaling policy ({', '.join(SCALING_POLICIES)}), or a "
            "YAML file of steering settings."
        ),
    ] = None,
) -> None:
    """Run a recorded decision log through the controller again and compare."""
    try:
        with log.open(encoding="utf-8") as lines:
            if policy is not None:
                _compare(log, lines, policy, limit=limit)
                return
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


def _compare(log: Path, lines: Iterable[str], policy: str, *, limit: int) -> None:
    change = change_of(policy)
    runs = runs_of(lines, source=str(log))
    typer.echo(f"{log}: {sum(len(run.ticks) for run in runs)} ticks, {len(runs)} run(s)")
    print_what_if(
        what_if(runs, change, source=str(log)),
        closed_loop(runs, change),
        policy=policy,
        limit=limit,
    )


def _print(difference: Difference) -> None:
    typer.echo(f"line {difference.line}, t = {difference.now_s:.3f} s")
    for sign, what, decisions, tier in (
        ("-", "recorded", difference.recorded, difference.recorded_tier),
        ("+", "replayed", difference.replayed, difference.replayed_tier),
    ):
        for line in decisions_text(sign, what, decisions, tier):
            typer.echo(line)
