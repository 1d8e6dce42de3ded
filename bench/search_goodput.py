"""The second fidelity: every strategy of a space simulated once, then all methods search it.

Nobody has an exact answer to "most goodput under a latency bound on this trace"; here it is had by
simulating everything, which no search could afford on a larger space. Judgements are kept, so that
a method pays nothing for what another has asked; its calls are counted all the same.

    Qwen3-30B-A3B on 16 x H100, `vllm` space; 1,000 requests, Poisson, prompts 2,000 tokens
    (lognormal, cv 1), outputs 300 (exponential); TTFT within 2 s and TPOT within 30 ms
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import islice
from multiprocessing import get_context
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.search_runs import Job, with_ray
from bench.search_tables import METHODS, calls_to, regret
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from cluster.sim.task import attempt_task
from cluster.traces.request import TraceRequest
from cluster.traces.synthetic_text import parse_synthetic
from rl_search.archive import Archive, Memory
from rl_search.enumeration import Space, options_for
from rl_search.evaluator import CostModel, Judged
from rl_search.goodput import Goodput, TraceFacts
from rl_search.question import Priority, Question
from rl_search.runs import PPO, Order, run
from rl_search.space import ActionSpace

CLUSTER, BUDGET = "2x8xH100", 300
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
CHUNKS = (512, 1024, 2048, 4096, 8192)
_BLOCK = 8
Ints = NDArray[np.int64]


@cache
def space() -> ActionSpace:
    """Every degree, and the limits in powers of two."""
    group = parse_cluster(CLUSTER).groups[0]
    options = options_for(group, space=Space.VLLM, max_devices=group.devices, max_dp=None)
    return ActionSpace.of(
        Question(
            model=get_model("qwen3-30b-a3b"),
            group=group,
            workload=Workload(isl=2000, osl=300),
            slo=Slo(ttft_s=2.0, tpot_s=0.03),
            options=replace(options, batches=BATCHES, chunks=CHUNKS),
            headroom=0.2,
            max_model_len=32_768,
        )
    )


@cache
def trace(count: int) -> tuple[TraceRequest, ...]:
    """The requests."""
    text = f"poisson:rate=10,count={count},isl=lognormal(2000,1),osl=exponential(300),seed=7"
    return tuple(islice(parse_synthetic(text), count))


def every_strategy() -> Ints:
    """All that the masks allow, (n, heads)."""
    own, found = space(), []

    def walk(head: int, state: int, prefix: tuple[int, ...]) -> None:
        if head == len(own.heads):
            found.append(prefix)
            return
        for value in np.flatnonzero(own.allow[head][state]).tolist():
            walk(head + 1, int(own.step[head][state, value]), (*prefix, value))

    walk(0, 0, ())
    return np.asarray(found, dtype=np.int64)


def simulated(actions: list[list[int]], count: int) -> list[tuple[float, float, float]]:
    """Judgements of some strategies, in a process of its own."""
    requests = trace(count)
    evaluator = Goodput(
        space(),
        run=lambda tasks: [attempt_task(task, requests) for task in tasks],
        trace=TraceFacts.of(requests),
    )
    judged = evaluator.judge(np.asarray(actions, dtype=np.int64))
    return list(zip(judged.value, judged.shortfall, judged.bubble, strict=True))


class Kept:
    """An evaluator that knows every answer already."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        return space()

    def judge(self, actions: Ints) -> Judged:
        """From memory; what no mask allows is as wrong as the cost model says."""
        judged, known = self._memory.recall(actions)
        if known.all():
            return judged
        other = CostModel(space(), Priority.THROUGHPUT).judge(actions)
        return Judged(
            np.where(known, judged.value, 0.0),
            np.where(known, judged.shortfall, np.maximum(other.shortfall, 1.0)),
            np.where(known, judged.bubble, other.bubble),
        )


def goodput_part(*, quick: bool, seeds: int, workers: int) -> dict[str, Any]:
    """Simulate all, search with every method, print, and return what was found."""
    count, actions = (100 if quick else 1000), every_strategy()
    actions = actions[:: max(1, len(actions) // 60)] if quick else actions
    began = time.perf_counter()
    memory = Memory(space())
    blocks = [actions[i : i + _BLOCK].tolist() for i in range(0, len(actions), _BLOCK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(simulated, blocks, [count] * len(blocks))
        rows = [row for block in found for row in block]
    memory.add(actions, Judged(*(np.asarray(column) for column in zip(*rows, strict=True))))
    took = time.perf_counter() - began
    judged = memory.judged
    best = float(judged.value[judged.ok].max())
    at = int(np.flatnonzero(judged.ok & (judged.value == best))[0])
    by_model = CostModel(space(), Priority.THROUGHPUT).judge(actions)
    pick = int(np.argmax(np.where(by_model.ok, by_model.value, -np.inf)))
    print(
        f"{len(actions):,} strategies x {count:,} requests simulated in {took:.0f} s\n"
        f"  optimum {best:,.1f} tokens/s/device within the SLO: {_told(actions[at])}\n"
        f"  the cost model's pick: {judged.value[pick]:,.1f} "
        f"(regret {1.0 - judged.value[pick] / best:.2%}): {_told(actions[pick])}"
    )
    runs = _searched(Kept(memory), budget=60 if quick else BUDGET, seeds=1 if quick else seeds)
    _print(runs, best)
    return {
        "strategies": len(actions),
        "requests": count,
        "seconds": took,
        "optimum": best,
        "cost_model_pick": float(judged.value[pick]),
        "runs": runs,
    }


def _searched(evaluator: Kept, *, budget: int, seeds: int) -> list[dict[str, Any]]:
    with_ray()
    made = []
    for method in ("heuristic", *METHODS):
        for seed in range(1 if method == "heuristic" else seeds):
            order = Order(method=method, budget=budget, seed=seed)
            if method == PPO:
                from rl_search.train import PpoOptions

                order = replace(order, ppo=PpoOptions(samples=20))
            began = time.perf_counter()
            archive: Archive = run(order, evaluator).archive
            job = Job(case="goodput", method=method, seed=seed, budget=budget)
            made.append(
                {
                    "key": job.key,
                    "method": method,
                    "seed": seed,
                    "budget": budget,
                    "calls": archive.calls,
                    "best": None if archive.best is None else archive.best.value,
                    "curve": [[found.calls, found.value] for found in archive.curve],
                    "seconds": time.perf_counter() - began,
                }
            )
    return made


def _print(runs: Sequence[dict[str, Any]], best: float) -> None:
    print(f"  {'method':<12} {'median':>9} {'worst':>8} {'within 1 %':>11} {'calls to 1 %':>13}")
    for method in dict.fromkeys(one["method"] for one in runs):
        own = [one for one in runs if one["method"] == method]
        regrets = [regret(one, best) for one in own]
        reached = sorted(c for c in (calls_to(one, best) for one in own) if c is not None)
        middle = (len(own) - 1) // 2
        told = f"{reached[middle]:,}" if middle < len(reached) else f"> {own[0]['budget']:,}"
        print(
            f"  {method:<12} {median(regrets):>9.2%} {max(regrets):>8.2%} "
            f"{len(reached):>6} of {len(own)} {told:>13}"
        )


def _told(action: Ints) -> str:
    row = space().decode(action[None]).row(0)
    return f"{row.describe()}, batch {row.max_num_seqs}, chunk {row.max_num_batched_tokens}"
