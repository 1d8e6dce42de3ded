"""Where does a search run, who judges it, and what is shown while it does?"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.search_options import Fidelity
from cli.simulate_traffic import trace_of
from cluster.errors import InputError, UnavailableError
from cluster.traces.request import TraceRequest
from rl_search.archive import Archive, Found
from rl_search.checkpoint import Checkpoint
from rl_search.evaluator import CostModel, Evaluator
from rl_search.goodput import Goodput, TraceFacts
from rl_search.methods import run_method
from rl_search.planner import question_of
from rl_search.request import PlanRequest
from rl_search.runs import PPO, Order, Outcome, Sure, run
from rl_search.space import ActionSpace
from serving.instance import Instance

UNITS = {
    Fidelity.COST_MODEL: {
        "throughput": "tokens/s/device",
        "interactive": "tokens/s/user",
        "balanced": "tokens/s/device x tokens/s/user",
    },
    Fidelity.GOODPUT: {"throughput": "tokens/s/device within the SLO"},
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where to run: `address` of a Ray cluster, None for here; how many of whom."""

    address: str | None
    runners: int | None
    simulators: int | None


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Who judges: the fidelity, and the trace of the second one."""

    fidelity: Fidelity
    trace: str | None
    requests: int


def space_of(request: PlanRequest) -> ActionSpace:
    """All strategies of the request. Raises InputError for a mixed cluster."""
    groups = request.cluster.groups
    if len(groups) != 1:
        told = " + ".join(f"{g.devices} x {g.device.name}" for g in groups)
        raise InputError(
            f"a search is for equal nodes; {request.cluster.name} has {told}. Fix: search each "
            "kind alone, or let `shardwise plan` look at all of them."
        )
    question = question_of(request)
    space = ActionSpace.of(question)
    fallback = question.options.fallback_batches
    if space.size or not fallback:
        return space
    return ActionSpace.of(replace(question, options=replace(question.options, batches=fallback)))


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the search has come to, and what the heuristic's strategy is worth to the same judge."""

    outcome: Outcome
    heuristic: Found | None


def search(
    order: Order,
    space: ActionSpace,
    request: PlanRequest,
    *,
    judge: Judge,
    place: Place,
    checkpoint: Checkpoint | None,
    unit: str,
) -> Result:
    """Run the order, with Ray where it takes one."""
    _quiet()
    with ExitStack() as held:
        needs_ray = order.method == PPO or judge.fidelity is Fidelity.GOODPUT
        nodes = held.enter_context(_ray(place)) if needs_ray else 1
        runners = place.runners
        if runners is None:
            runners = nodes if place.address is not None else 0
        if order.ppo is not None:
            order = replace(order, ppo=replace(order.ppo, runners=runners))
        evaluator = held.enter_context(
            _evaluator(space, request, judge=judge, place=place, busy=runners)
        )
        held.enter_context(_stoppable())
        with _shown(order, space, unit=unit) as show:
            outcome = run(order, evaluator, checkpoint=checkpoint, tell=show)
        return Result(outcome=outcome, heuristic=heuristic_of(evaluator))


def heuristic_of(evaluator: Evaluator) -> Found | None:
    """The heuristic's strategy, None where it has none that satisfies everything."""
    archive = Archive(evaluator, budget=evaluator.space.size)
    run_method("heuristic", archive, 0)
    return archive.best


def default_checkpoint(question: Mapping[str, object]) -> Path:
    """Where a search of this question is kept as long as it is not done."""
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]
    return Instance.default().directory.parent / "searches" / digest


@contextmanager
def _ray(place: Place) -> Iterator[int]:
    """Connected; how many nodes there are."""
    try:
        from cluster.ray_backend.measure import connected
        from cluster.ray_backend.sim_pool import cluster_size, local_ray
    except ImportError as error:
        raise UnavailableError(
            f"this search runs on Ray, which is not here ({error}). Fix: install shardwise[rl], or "
            "use another --method with --fidelity cost-model."
        ) from error
    with local_ray() if place.address is None else connected(place.address):
        yield cluster_size()[0]


@contextmanager
def _evaluator(
    space: ActionSpace, request: PlanRequest, *, judge: Judge, place: Place, busy: int
) -> Iterator[Evaluator]:
    if judge.fidelity is Fidelity.COST_MODEL:
        yield CostModel(space, request.priority)
        return
    from cluster.ray_backend.shared_pool import shared_pool, shared_run
    from cluster.ray_backend.sim_pool import cluster_size

    requests = requests_of(judge, request)
    actors = place.simulators or max(1, cluster_size()[1] - busy)
    with shared_pool(requests, actors=actors) as front:
        yield Goodput(space, run=shared_run(front), trace=TraceFacts.of(requests))


def requests_of(judge: Judge, request: PlanRequest) -> tuple[TraceRequest, ...]:
    """What strategies are simulated under: the trace's first requests, or the question's own."""
    work = request.workload
    text = judge.trace or f"poisson:rate=1,count={judge.requests},isl={work.isl},osl={work.osl}"
    return tuple(islice(trace_of(text, format_name=None, seed=0), judge.requests))


@contextmanager
def _stoppable() -> Iterator[None]:
    """What stops a job is taken like Ctrl-C: the checkpoint stands, and one line says so."""

    def stop(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _quiet() -> None:
    """RLlib and gymnasium warn of what is meant here."""
    warnings.filterwarnings("ignore", module=r"gymnasium|ray\.rllib|torch")
    for name in ("ray.rllib", "ray.tune", "gymnasium"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("PYTHONWARNINGS", "ignore")


@contextmanager
def _shown(
    order: Order, space: ActionSpace, *, unit: str
) -> Iterator[Callable[[Archive, Sure | None], None]]:
    """The best, the calls and the least sure head, as they change: a bar, or lines in a log."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def said(archive: Archive, sure: Sure | None) -> str:
        best = "none yet" if archive.best is None else f"{archive.best.value:.4g} {unit}"
        if sure is None or not sure.confidence:
            return f"best {best}"
        least = min(range(len(sure.confidence)), key=lambda head: sure.confidence[head])
        return (
            f"best {best}, chunk {sure.chunk + 1}, least sure {space.heads[least].name} "
            f"{sure.confidence[least]:.2f}"
        )

    if not console.is_terminal:
        step, shown = max(1, order.budget // _LINES), 0

        def line(archive: Archive, sure: Sure | None) -> None:
            nonlocal shown
            if archive.calls >= shown + step or archive.left == 0:
                shown = archive.calls
                console.print(f"{archive.calls:,} of {order.budget:,} calls, {said(archive, sure)}")

        yield line
        return
    columns = (
        *(TextColumn(order.method), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=order.budget)

        def bar(archive: Archive, sure: Sure | None) -> None:
            progress.update(task, completed=archive.calls, description=said(archive, sure))

        yield bar


_LINES = 20  # in a log
