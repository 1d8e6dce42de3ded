"""A live engine to a file of its step times: started, measured, fitted, findings printed.

The file is no calibration of the cost model: it holds one engine on one machine, for
`shardwise simulate` to be held against, and is written whole or not at all by the command.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cli.calibrate_report import working
from cli.console import milliseconds, table
from cluster.calibration.live_file import LiveFile, Point
from cluster.errors import InputError, UnknownNameError
from cluster.sim.measured_times import MeasuredTimes
from cluster.sim.times import Piece
from serving.bundled import BUNDLED, bundled_path

if TYPE_CHECKING:
    from serving.engine.live_engine import LiveSettings

# Seconds for cells; starting and stopping the engine come on top.
QUICK_S, FULL_S = 45.0, 210.0


@dataclass(frozen=True, kw_only=True)
class LiveRequest:
    """Which engine to start and for how long to measure it."""

    model: str
    quick: bool
    max_num_seqs: int
    max_model_len: int
    chunk: int
    threads: int


def from_live(request: LiveRequest, console: Console, *, today: date) -> LiveFile:
    """Start the engine, measure, fit and print.

    Raises UnavailableError without vLLM, InputError for a model or limits that do not go.
    """
    from serving.engine.live_engine import LiveSettings

    settings = LiveSettings(
        model=model_directory(request.model),
        max_num_seqs=request.max_num_seqs,
        max_model_len=request.max_model_len,
        chunk=request.chunk,
        threads=request.threads,
    )
    if request.chunk <= request.max_num_seqs:
        raise InputError(
            f"--chunk {request.chunk} leaves no room for prompts beside --max-num-seqs "
            f"{request.max_num_seqs} decoding. Fix: pass a larger --chunk."
        )
    found = asyncio.run(_measure(settings, console, quick=request.quick, today=today))
    print_live(console, found)
    return found


def model_directory(model: str) -> Path:
    """A directory as it is, or that of a bundled model."""
    path = Path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"--model {model} holds no config.json. Fix: name a model's directory."
            )
        return path
    if model not in BUNDLED:
        raise UnknownNameError(
            kind="model", name=model, known=BUNDLED, hint="Or pass a directory with its weights."
        )
    return bundled_path(model)


def print_live(console: Console, found: LiveFile) -> None:
    """Every point measured and fitted, the front end's share, and how well it all goes together."""
    where = found.provenance
    console.print(
        f"{where.model}, {where.engine} on {where.device}, {where.threads} thread(s), "
        f"measured for {where.measured_s:.0f} s",
        markup=False,
    )
    times = MeasuredTimes.of(found)
    made = table(
        "steps",
        "",
        "samples",
        "measured ms",
        "spread",
        "fitted ms",
        "error",
    )
    for point in found.points:
        seconds = seconds_of(point, times, chunk=where.chunk)
        made.add_row(
            point.name,
            str(point.samples),
            milliseconds(point.seconds),
            f"{point.spread:.1%}" if point.samples > 1 else "-",
            milliseconds(seconds),
            f"{seconds / point.seconds - 1.0:+.1%}",
        )
    console.print(made)
    front, left = found.front, found.fitted.residuals
    console.print(
        f"front end: {milliseconds(front.into_s)} ms in, {front.into_token_s * 1e6:.2f} us more "
        f"per prompt token, {milliseconds(front.out_s)} ms out "
        f"(spread {milliseconds(front.out_spread_s)} ms); gaps between tokens are "
        f"{front.client_over_engine:.3f} of the engine's",
        markup=False,
    )
    console.print(
        f"fit: median error {left.median:.1%}, worst {left.worst:.1%} at {left.worst_point}",
        markup=False,
    )
    scheduling = "on: newcomers wait a step longer" if where.async_scheduling else "off"
    console.print(f"asynchronous scheduling: {scheduling}", markup=False)
    for note in where.notes:
        console.print(f"note: {note}", markup=False)


def seconds_of(point: Point, times: MeasuredTimes, *, chunk: int) -> float:
    """What the simulator takes for the steps of a point."""
    seconds = 0.0
    for step in point.steps(chunk):
        pieces = [Piece(each.tokens, each.start, each.tokens) for each in step.chunks]
        context = round(step.context)
        seconds += (
            times.mixed_s(step.sequences, context, pieces, 0)
            if pieces
            else times.decode_s(step.sequences, context, 0)
        )
    return seconds


async def _measure(
    settings: LiveSettings, console: Console, *, quick: bool, today: date
) -> LiveFile:
    from serving.engine.live_engine import LiveEngine
    from serving.engine.live_grid import full_cells, quick_cells
    from serving.engine.live_measure import limits_of, live_file, measure

    with working(console, f"measuring {settings.model.name}") as tell:
        tell("starting the engine")
        async with LiveEngine.start(settings) as engine:
            limits = limits_of(engine)
            begin = time.monotonic()
            samples = await measure(
                engine,
                quick_cells(limits) if quick else full_cells(limits),
                budget_s=QUICK_S if quick else FULL_S,
                tell=tell,
            )
            measured_s = time.monotonic() - begin
            return live_file(engine, samples, date=today.isoformat(), measured_s=measured_s)
