"""How is it told what another policy would have done?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from autoscaler.closed_loop import Course
from autoscaler.snapshot import Decision, Tier
from autoscaler.what_if import PoolFigures, WhatIf
from cli.console import out, table

HOUR_S = 3600.0


def decisions_text(
    sign: str, what: str, decisions: Sequence[Decision], tier: Tier
) -> Iterator[str]:
    """Lines of what was decided at a tick."""
    yield f"  {sign} {what}: tier {tier.name}, {len(decisions)} decision(s)"
    for decision in decisions:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in decision.numbers)
        text = f"{decision.action.value} {decision.pool} {decision.value}: {decision.reason}"
        yield f"  {sign}   {text} ({numbers})" if numbers else f"  {sign}   {text}"


def print_what_if(
    found: WhatIf, courses: tuple[Course, Course], *, policy: str, limit: int
) -> None:
    """The first differences, and both policies' figures with and without their consequences."""
    for item in found.divergences[:limit]:
        typer.echo(f"line {item.line}, t = {item.now_s:.3f} s")
        for sign, what, decisions, tier in (
            ("-", "recorded", item.recorded, item.recorded_tier),
            ("+", policy, item.other, item.other_tier),
        ):
            for line in decisions_text(sign, what, decisions, tier):
                typer.echo(line)
    more = len(found.divergences) - limit
    if more > 0:
        typer.echo(f"... {more} more; raise --limit to see them.")
    if not found.divergences:
        typer.echo(f"{policy} changes nothing else at any tick.")
    _print_recorded(found, policy)
    _print_courses(courses, policy)


def _print_recorded(found: WhatIf, policy: str) -> None:
    rows = table(
        "on the recorded snapshots",
        *("pool", "policy", "replica-hours", "changes", "load over capacity"),
    )
    for pool, recorded in found.recorded.items():
        for name, figures in (("recorded", recorded), (policy, found.other[pool])):
            rows.add_row(
                pool,
                name,
                f"{figures.replica_s / HOUR_S:.2f}",
                str(figures.changes),
                _over(figures),
            )
    out().print(rows)
    typer.echo(
        f"The recorded load does not react: what waited and was in flight is what the recorded\n"
        f"replicas left, whatever {policy} asks for. Trust the first differences, not the sums."
    )


def _print_courses(courses: tuple[Course, Course], policy: str) -> None:
    rows = table(
        "the same arrivals through modelled pools, where decisions have consequences",
        *("policy", "replica-hours", "changes", "arrived while others waited", "saturated"),
        "above tier 0",
    )
    for name, course in zip(("recorded", policy), courses, strict=True):
        rows.add_row(
            name,
            f"{course.replica_s / HOUR_S:.2f}",
            str(course.changes),
            _share(course.waiting_tokens, course.arrived_tokens),
            _share(course.full_s, course.duration_s),
            _share(course.degraded_s, course.duration_s),
        )
    out().print(rows)


def _over(figures: PoolFigures) -> str:
    return _share(figures.over_tokens, figures.arrived_tokens)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole > 0.0 else "-"
