"""How many simulations per second does the pool of simulator actors make?

    python -m bench.sim_pool [--quick] [--json FILE]

Candidates (layouts x replicas x chunk sizes of Llama 3.1 70B on H100) on traces of three lengths:
in this process one after another, on the pool with one task a call, and on the pool with batches.
The pools have an actor per CPU and are warm; the three take turns, and medians are kept. `speedup`
is the batched pool over this process, `batching` over one task a call.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path

import numpy as np

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import make_case
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Slo
from cluster.pool_ledger import ReplicaLimits
from cluster.ray_backend.sim_pool import SimPool, local_ray
from cluster.sim.modelled_times import ModelledTimes
from cluster.sim.setup import PoolSetup, Setup
from cluster.sim.spec import ReplicaSpec
from cluster.sim.task import SimTask, run_task
from cluster.traces.request import TraceRequest

LENGTHS = (10, 100, 1000)  # requests of a trace
RATE = 10.0  # requests/s
CPUS = os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half the tasks, one turn")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    runs = 1 if args.quick else 5
    heads = ("tasks", "one process", "one a call", "batches", "speedup", "batching")
    print(f"{CPUS} CPUs, simulations/s")
    print(f"{'requests':>8}" + "".join(f"{head:>13}" for head in heads))
    found = []
    with local_ray(2 * CPUS):  # two pools take turns
        for length in LENGTHS:
            # About as much work for each length.
            row = measured(length, tasks=(10_000 if args.quick else 20_000) // length, runs=runs)
            found.append(row)
            print(
                f"{row['requests']:>8}{row['tasks']:>13}{row['one_process_per_s']:>13.1f}"
                f"{row['one_a_call_per_s']:>13.1f}{row['batches_per_s']:>13.1f}"
                f"{row['speedup']:>13.2f}{row['batching']:>13.2f}"
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measured(length: int, *, tasks: int, runs: int) -> dict[str, float]:
    requests = trace(length)
    todo = list(islice(cycle(candidates()), tasks))
    with (
        SimPool(requests, actors=CPUS, most=1) as singles,
        SimPool(requests, actors=CPUS, most=32) as batches,
    ):
        ways: dict[str, Callable[[], object]] = {
            "one_process": lambda: [run_task(task, requests) for task in todo],
            "one_a_call": partial(singles.map, todo),
            "batches": partial(batches.map, todo),
        }
        for pool in (singles, batches):
            pool.map(todo[: 8 * CPUS])  # all actors are there
        # In turns: what else the machine does hits all of them.
        rounds = [{way: seconds(work) for way, work in ways.items()} for _ in range(runs)]
    return {
        "requests": length,
        "tasks": tasks,
        "cpus": CPUS,
        **{f"{way}_per_s": tasks / statistics.median(run[way] for run in rounds) for way in ways},
        "speedup": statistics.median(run["one_process"] / run["batches"] for run in rounds),
        "batching": statistics.median(run["one_a_call"] / run["batches"] for run in rounds),
    }


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def trace(length: int) -> tuple[TraceRequest, ...]:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1.0 / RATE, length)).tolist()
    prompts = rng.integers(100, 3000, length).tolist()
    outputs = rng.integers(10, 400, length).tolist()
    return tuple(map(TraceRequest, arrivals, prompts, outputs))


def candidates() -> list[SimTask]:
    return [
        SimTask(setup=setup(tp, replicas=replicas, chunk=chunk))
        for tp, replicas, chunk in product((2, 4, 8), (2, 4), (2048, 4096, 8192))
    ]


def setup(tp: int, *, replicas: int, chunk: int) -> Setup:
    coefficients = default_coefficients()
    case = make_case(
        get_model("llama-3.1-70b"),
        parse_cluster("8x8xH100").groups[0],
        LayoutTable.from_layouts([Layout(tp=tp)]),
        coefficients,
        backend="vllm",
    ).merged()
    spec = ReplicaSpec(
        times=ModelledTimes(case, coefficients),
        max_num_seqs=256,
        chunk=chunk,
        kv_blocks=10_000 * tp,
        devices=tp,
    )
    limits = ReplicaLimits(max_requests=256, max_tokens=160_000.0 * tp)
    pool = PoolSetup(name="main", spec=spec, replicas=replicas, limits=limits)
    return Setup(pools=(pool,), slo=Slo(ttft_s=2.0, tpot_s=0.05))


if __name__ == "__main__":
    main()
