"""One run of the search comparison: a case, a method, a seed; and what is kept of it.

Runs are independent processes' work: each worker builds what a case needs once and keeps it.
"""

from __future__ import annotations

import atexit
import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from bench.search_cases import SearchCase, cases
from cluster.model.cluster_file import parse_cluster
from rl_search.archive import Archive
from rl_search.enumeration import Space, options_for
from rl_search.evaluator import CostModel
from rl_search.question import Priority, Question
from rl_search.runs import PPO, Order, run
from rl_search.space import ActionSpace

HEADROOM = 0.2


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run. `variant` names the settings of PPO that differ from the default ones."""

    case: str
    method: str
    seed: int
    budget: int
    variant: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells it from other jobs."""
        return "/".join((self.case, self.method, self.variant, str(self.budget), str(self.seed)))


def question_of(case: SearchCase, *, space: Space = Space.ANY) -> Question:
    """What a case asks."""
    group = parse_cluster(case.cluster).groups[0]
    return Question(
        model=case.model,
        group=group,
        workload=case.workload,
        slo=case.slo,
        options=options_for(group, space=space, max_devices=group.devices, max_dp=None),
        headroom=HEADROOM,
        max_model_len=case.workload.isl + case.workload.osl,
        serving=case.serving,
    )


@cache
def case_named(name: str) -> SearchCase:
    """One of the cases."""
    return next(case for case in cases() if case.name == name)


@cache
def evaluator_of(name: str) -> CostModel:
    """The cost model of a case."""
    return CostModel(ActionSpace.of(question_of(case_named(name))), Priority.THROUGHPUT)


def run_job(job: Job) -> dict[str, Any]:
    """The curve of a run, its calls and seconds, as plain data."""
    evaluator = evaluator_of(job.case)
    began, cpu = time.perf_counter(), time.process_time()
    outcome = run(_order(job), evaluator)
    return kept(job, outcome.archive) | {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


def kept(job: Job, archive: Archive) -> dict[str, Any]:
    """What is kept of a run."""
    best = archive.best
    row = None
    if best is not None:
        row = archive.space.layout(best.action)
    return {
        "key": job.key,
        **{name: value for name, value in asdict(job).items() if name not in ("settings",)},
        "calls": archive.calls,
        "asked": archive.asked,
        "best": None if best is None else best.value,
        "layout": None
        if row is None
        else f"{row.describe()}, batch {row.max_num_seqs}, chunk {row.max_num_batched_tokens}",
        "dims": None if row is None else [[name, dim.value] for name, dim in row.dims],
        "curve": [[found.calls, found.value] for found in archive.curve],
    }


def _order(job: Job) -> Order:
    if job.method != PPO:
        return Order(method=job.method, budget=job.budget, seed=job.seed)
    with_ray()
    from rl_search.network import NetworkOptions
    from rl_search.train import PpoOptions

    settings = PpoOptions(**job.settings, network=NetworkOptions(**job.network))
    return Order(method=PPO, budget=job.budget, seed=job.seed, ppo=settings)


@cache
def with_ray() -> None:
    """A Ray of this process's own, once, gone with it."""
    from cluster.ray_backend.sim_pool import local_ray

    warnings.filterwarnings("ignore")
    held = ExitStack()
    held.enter_context(local_ray(cpus=1))
    atexit.register(held.close)
