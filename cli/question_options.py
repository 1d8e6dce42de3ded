"""Options in which every planning command is asked: the model, the requests and their bounds."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.console import duration_s
from cluster.model.workload import Slo
from rl_search.enumeration import Space
from rl_search.question import Priority

ModelOption = Annotated[
    str, typer.Option("--model", help="Catalogue name, hub id, config.json or model directory.")
]
IslOption = Annotated[int, typer.Option("--isl", min=1, help="Prompt tokens of a request.")]
OslOption = Annotated[int, typer.Option("--osl", min=1, help="Output tokens of a request.")]
TtftOption = Annotated[
    str | None, typer.Option("--ttft", help="Bound on time to first token, e.g. `2000ms`.")
]
TpotOption = Annotated[
    str | None, typer.Option("--tpot", help="Bound on time per output token, e.g. `50ms`.")
]
PriorityOption = Annotated[
    Priority, typer.Option("--priority", help="What to maximise within the bounds.")
]
SpaceOption = Annotated[
    Space,
    typer.Option(
        "--engine",
        "--space",
        help="Layouts vLLM can run, or any expert grid and cut of each operator.",
    ),
]


def slo_of(ttft: str | None, tpot: str | None) -> Slo:
    """The bounds of `--ttft` and `--tpot`. Raises InputError naming the option."""
    return Slo(
        ttft_s=None if ttft is None else duration_s(ttft, option="--ttft"),
        tpot_s=None if tpot is None else duration_s(tpot, option="--tpot"),
    )
