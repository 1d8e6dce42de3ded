"""What the commands share: the console, durations, clusters by text, and how an error leaves.

Durations are written with a unit (`2000ms`, `2s`, `0.05s`): a bare number would be read as
milliseconds by one person and seconds by the next.
Invariant: nothing here decides anything; results go to stdout, errors to stderr.
"""

from __future__ import annotations

import math
import re
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from cluster.errors import InputError, ShardwiseError
from cluster.model.cluster_file import parse_cluster
from cluster.model.hardware import ClusterSpec

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(us|ms|s|min)\s*", re.IGNORECASE)


def out() -> Console:
    """Console on stdout; made anew so that a redirected stream is honoured. Never truncates."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, soft_wrap=True, width=160)
    return console


def fail(error: ShardwiseError) -> NoReturn:
    """Print `error: …` to stderr and leave with the error's exit code."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {error}", markup=False)
    raise typer.Exit(error.exit_code)


def table(title: str, *columns: str) -> Table:
    """A plain table: the first column to the left, numbers to the right."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        made.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    return made


def duration_s(text: str, *, option: str) -> float:
    """Seconds of `2000ms`, `2s`, `0.05s`, `1min`. Raises InputError naming the option."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InputError(
            f"{option} '{text}' is not a duration. Fix: write a number with its unit, "
            f"e.g. `2000ms`, `2s`, `0.05s` (units: {', '.join(_UNITS)})."
        )
    seconds = float(match.group(1)) * _UNITS[match.group(2).lower()]
    if not 0.0 < seconds < math.inf:
        raise InputError(f"{option} '{text}' must be longer than zero.")
    return seconds


def resolve_cluster(text: str) -> ClusterSpec:
    """The cluster of `4x8xH200`, a file, or `local` (this machine)."""
    if text.strip().lower() == "local":
        from cluster.ray_backend.inventory import local_cluster

        return local_cluster()
    return parse_cluster(text)


def milliseconds(seconds: float) -> str:
    """`12.3` for people, whatever the size."""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.1f}"


def gib(bytes_: float) -> str:
    """GiB with one decimal."""
    return f"{bytes_ / 1024.0**3:.1f}"


def count(value: float) -> str:
    """`671 B`, `8.03 B`, `135 M`: parameters and tokens for people."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value:.0f}"
