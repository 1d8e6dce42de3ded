"""Options of `search`: the method and its budget, where it runs, and what it writes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Fidelity(StrEnum):
    """Who judges a strategy."""

    COST_MODEL = "cost-model"
    GOODPUT = "goodput"


class Start(StrEnum):
    """Whose answer a search may begin with."""

    HEURISTIC = "heuristic"
    EXACT = "exact"


MethodOption = Annotated[
    str,
    typer.Option(
        "--method", help="ppo, random, anneal, genetic, tpe, heuristic, or exact (no budget)."
    ),
]
BudgetOption = Annotated[
    int, typer.Option("--budget", min=1, help="Evaluator calls: strategies judged.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="The same seed, the same plan.")]
FidelityOption = Annotated[
    Fidelity, typer.Option("--fidelity", help="Judge by the cost model, or simulate each.")
]
TraceOption = Annotated[
    str | None,
    typer.Option("--trace", help="Goodput: a trace file or a described one. Default: isl/osl."),
]
RequestsOption = Annotated[
    int, typer.Option("--requests", min=2, help="Goodput: requests of the trace to simulate.")
]
StartOption = Annotated[
    list[Start] | None,
    typer.Option("--start", help="Judge this answer first (its calls count). Repeatable."),
]
ChunksOption = Annotated[int, typer.Option("--chunks", min=1, help="ppo: chunks of the budget.")]
TauOption = Annotated[
    float,
    typer.Option("--tau", min=0.0, help="ppo: a chunk ends when every head is as sure as this."),
]
SamplesOption = Annotated[int, typer.Option("--samples", min=1, help="ppo: strategies a round.")]
CurriculumOption = Annotated[
    bool, typer.Option("--curriculum", help="ppo: tensor parallelism first, then experts, then pp.")
]
RunnersOption = Annotated[
    int | None,
    typer.Option(
        "--runners",
        min=0,
        help="ppo: env runners on Ray. Default: one a node with --address, else in this process.",
    ),
]
SimulatorsOption = Annotated[
    int | None,
    typer.Option(
        "--simulators", min=1, help="Goodput: simulator actors. Default: the CPUs that are left."
    ),
]
CheckpointOption = Annotated[
    Path | None,
    typer.Option("--checkpoint", help="Directory to save to and go on from. Default: by question."),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Begin anew, whatever an interrupted search has saved.")
]
RegretOption = Annotated[
    bool | None,
    typer.Option(
        "--regret/--no-regret",
        help="Compare with the exact optimum. Default: where it is a matter of seconds.",
    ),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write the run: method, calls, best, curve.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", help="Write an HTML page of the run.")
]
OutOption = Annotated[Path, typer.Option("--out", help="Where to write the winner's plan.")]
