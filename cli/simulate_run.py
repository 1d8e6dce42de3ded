"""How is one case simulated? With a progress bar on a terminal, a clock, and a clean way out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress

from autoscaler.decision_log import Record, dump
from autoscaler.reasons import Action
from autoscaler.simulated import Steered
from autoscaler.snapshot import Decision
from cli.simulate_inputs import Case
from cluster.sim.event_log import NO_LOG, EventLog
from cluster.sim.record import Outcome
from cluster.sim.simulation import Simulation
from cluster.sim.task import Summary, summarise
from cluster.traces.request import TraceRequest

INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True)
class Run:
    """A case that was simulated. `decisions`: those that changed something, with their times."""

    case: Case
    outcome: Outcome
    summary: Summary
    decisions: tuple[tuple[float, Decision], ...]
    wall_s: float


def run_case(
    case: Case,
    requests: Iterable[TraceRequest],
    *,
    total: int,
    seed: int,
    log: EventLog = NO_LOG,
    keep: bool = False,
    decisions: Path | None = None,
) -> Run:
    """Simulate here. Raises InputError for a bad request; on Ctrl-C says how far it came."""
    with ExitStack() as stack:
        driver = None if case.steering is None else case.steering()
        if case.steering is not None and decisions is not None:
            file = stack.enter_context(decisions.open("w", encoding="utf-8"))

            def write(record: Record) -> None:
                file.write(f"{dump(record)}\n")

            driver = case.steering(write=write)
        simulation = Simulation(case.setup, driver=driver, seed=seed, log=log, keep=keep)
        watched = stack.enter_context(_watched(requests, total=total))
        start_s = time.perf_counter()
        with interruptible(partial(_so_far, simulation)):
            outcome = simulation.run(watched)
        wall_s = time.perf_counter() - start_s
    return Run(
        case=case,
        outcome=outcome,
        summary=summarise(outcome),
        decisions=_changes(driver),
        wall_s=wall_s,
    )


@contextmanager
def interruptible(said: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C leaves with one line and the shell's code for it."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True, highlight=False, soft_wrap=True).print(said(), markup=False)
        raise typer.Exit(INTERRUPTED) from None


def _so_far(simulation: Simulation) -> str:
    record = simulation.record
    return (
        f"interrupted at {simulation.now_s:,.1f} s of the trace: {record.arrived:,} requests had "
        f"come, {record.completed:,} were done; no results are written."
    )


@contextmanager
def _watched(requests: Iterable[TraceRequest], *, total: int) -> Iterator[Iterable[TraceRequest]]:
    """The requests, with a bar of how many have come where somebody can see it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield requests
        return
    with Progress(console=console, transient=True) as progress:
        yield progress.track(requests, total=total, description="simulating")


def _changes(driver: Steered | None) -> tuple[tuple[float, Decision], ...]:
    if driver is None:
        return ()
    return tuple(made for made in driver.decisions if made[1].action is not Action.HOLD)
