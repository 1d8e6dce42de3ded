"""How is one machine measured without Ray? The node's benchmarks, then a process for each rank.

Invariants: no process outlives the call, whatever fails; the first rank that fails is named at
once, since the others wait for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.calibration.collective_bench import (
    DEFAULT_SIZES,
    MOST_CPU_RANKS,
    START_S,
    Schedule,
    run_rank,
    teams,
)
from cluster.calibration.microbench import Sizes, load_torch, measure_node
from cluster.calibration.peer_bench import path_inside
from cluster.calibration.points import CollectivePoint, Measurements
from cluster.errors import InputError, UnavailableError


def measure_machine(
    *,
    budget_s: float = 120.0,
    sizes: Sizes | None = None,
    collective_sizes: Sequence[int] = DEFAULT_SIZES,
) -> Measurements:
    """This machine alone, without Ray: two thirds of the budget on the node, one third on ranks.

    Raises UnavailableError without torch, or for a collective that fails.
    """
    found = measure_node(budget_s=budget_s * 2 / 3, sizes=sizes)
    ranks = found.devices if found.kind == "gpu" else min(found.devices, MOST_CPU_RANKS)
    if ranks < 2:
        return found
    schedule = Schedule(
        world=ranks,
        device="cuda" if found.kind == "gpu" else "cpu",
        teams=teams([0] * ranks, inside=path_inside(found)),
        sizes=tuple(collective_sizes),
        budget_s=budget_s / 3,
    )
    return replace(found, collectives=local_collectives(schedule))


def local_collectives(schedule: Schedule) -> tuple[CollectivePoint, ...]:
    """Run `schedule` with one process a rank on this machine.

    Raises InputError for fewer than two ranks, UnavailableError for a rank that fails or hangs.
    """
    if schedule.world < 2:
        raise InputError(
            f"collectives need at least 2 ranks, this schedule has {schedule.world}. Fix: measure "
            "on a node with two devices, or leave collectives out."
        )
    load_torch()
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        meeting = f"file://{Path(folder) / 'meeting'}"
        for rank in range(schedule.world):
            process = context.Process(
                target=_child, args=(rank, schedule, meeting, answers), daemon=True
            )
            process.start()
            stack.callback(_end, process)
        return _collect(answers, schedule)


def _collect(answers: Any, schedule: Schedule) -> tuple[CollectivePoint, ...]:
    deadline = time.monotonic() + START_S + schedule.budget_s
    found: tuple[CollectivePoint, ...] = ()
    for _ in range(schedule.world):
        try:
            rank, points, error = answers.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty as late:
            raise UnavailableError(
                f"the collectives of {schedule.world} ranks did not end within "
                f"{START_S + schedule.budget_s:g} s. Fix: see that no other process uses the "
                "devices, or measure fewer sizes."
            ) from late
        if error:
            raise UnavailableError(f"rank {rank} of the collectives failed: {error}")
        found = points or found
    return found


def _child(rank: int, schedule: Schedule, meeting: str, answers: Any) -> None:
    try:
        answers.put((rank, run_rank(rank, schedule, meeting=meeting), ""))
    except Exception as error:
        answers.put((rank, (), f"{type(error).__name__}: {error}"))


def _end(process: Any) -> None:
    process.join(timeout=5.0)
    if process.is_alive():
        process.kill()
        process.join()
