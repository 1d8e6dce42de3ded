"""`shardwise check`: does this plan hold on its cluster? If not: what it costs, what mends it.

Exit code 0: nothing found, or warnings only. 1: violations. 2: the file, a model or the cluster
cannot be read.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.console import out, resolve_cluster
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan, load_plan
from cluster.model.planned import planned_model
from cluster.model.rules import Severity
from rl_search.checks import Finding, check_plan


def command(
    *,
    path: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    cluster: Annotated[
        str | None, typer.Option(help="Check against this cluster instead of the plan's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Validate a plan and list what is wrong with it, each with its cost and its fix."""
    plan = load_plan(path)
    models: dict[str, ModelSpec] = {
        pool.name: planned_model(pool, source=str(path)) for pool in plan.pools
    }
    spec = resolve_cluster(cluster or plan.cluster.spec)
    findings = check_plan(plan, models, spec)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(plan, findings, path=path)
    if any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _print(plan: Plan, findings: list[Finding], *, path: Path) -> None:
    console = out()
    layout = plan.main.layout.to_layout(replicas=plan.main.replicas.maximum)
    console.print(
        f"{path}: {plan.main.model.name}, {layout.describe()} on {plan.cluster.spec}", markup=False
    )
    for finding in findings:
        mark = "" if finding.severity is Severity.ERROR else f" ({finding.severity.value})"
        console.print(f"\n{finding.pool}: {finding.rule}{mark}", markup=False)
        console.print(f"  {finding.problem}", markup=False)
        console.print(f"  cost: {finding.cost}", markup=False)
        console.print(f"  fix:  {finding.fix}", markup=False)
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    warnings = len(findings) - errors
    console.print(
        (f"\n{errors} violation(s)" if errors else "no violations")
        + (f", {warnings} warning(s)." if warnings else ".")
    )
