"""PPO against the exact optimum, a Megatron heuristic, random, annealing, genetic and TPE.

    python -m bench.search [--quick] [--json FILE] [--part NAME]... [--seeds N] [--workers N]

Every method has the same evaluator, the same masks and the same budget of calls, counted in one
place (`rl_search.archive`). Parts: `compare` (the six cases), `tau` (early stop), `ablate` (what
each piece of the policy is worth), `goodput` (the simulator judges; the optimum by trying all),
`patterns` (article A's claims on the exact optimum). FILE keeps every run as it ends; runs it
already holds are not run again. The article's figures stand beside ours, and are never ours.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.search_cases import cases
from bench.search_goodput import goodput_part
from bench.search_patterns import patterns_part
from bench.search_runs import Job, run_job
from bench.search_tables import (
    ABLATIONS,
    METHODS,
    TAUS,
    Variant,
    print_ablations,
    print_comparison,
    print_tau,
)

BUDGET = 2000
LONGER = 10  # times the budget for random too, to see how many times more it needs
NEAR = ("1.2T on 64", "1.6T on 64")
Run = dict[str, Any]


def comparison(seeds: int, *, names: Iterable[str], budget: int) -> list[Job]:
    """Every method on every case; those without chance once."""
    jobs = [Job(case=name, method="exact", seed=0, budget=budget) for name in names]
    jobs += [Job(case=name, method="heuristic", seed=0, budget=budget) for name in names]
    for seed in range(seeds):
        for name in names:
            jobs += [Job(case=name, method=method, seed=seed, budget=budget) for method in METHODS]
            if name in NEAR:
                jobs.append(Job(case=name, method="random", seed=seed, budget=LONGER * budget))
    return jobs


def variants(
    listed: Sequence[Variant], seeds: int, *, names: Iterable[str], budget: int
) -> list[Job]:
    """PPO with each of the settings listed."""
    return [
        Job(
            case=name,
            method="ppo",
            seed=seed,
            budget=budget,
            variant=label,
            settings=settings,
            network=network,
        )
        for name in names
        for label, settings, network in listed
        for seed in range(seeds)
    ]


class Results:
    """Runs by key, kept in a file as they end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.runs: dict[str, Run] = {}
        if path is not None and path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            self.runs = {run["key"]: run for run in held.get("runs", [])}
            self.parts: dict[str, Any] = held.get("parts", {})
        else:
            self.parts = {}

    def add(self, run: Run) -> None:
        """One more."""
        self.runs[run["key"]] = run
        self.write()

    def write(self) -> None:
        """Replace the file."""
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        text = json.dumps({"runs": list(self.runs.values()), "parts": self.parts}, indent=1)
        new.write_text(text, encoding="utf-8")
        new.replace(self._path)


def run_all(jobs: Sequence[Job], results: Results, *, workers: int) -> list[Run]:
    """Those that are not there yet, on `workers` processes; all of them in order."""
    left = [job for job in jobs if job.key not in results.runs]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(run_job, job) for job in left]
        for done, future in enumerate(as_completed(waiting), start=1):
            run = future.result()
            results.add(run)
            value = "none" if run["best"] is None else f"{run['best']:.5g}"
            print(
                f"  {done}/{len(left)} {run['key']}: {value} after {run['calls']:,} calls, "
                f"{run['seconds']:.1f} s",
                flush=True,
            )
    return [results.runs[job.key] for job in jobs]


def main() -> None:
    """Run the parts asked for, print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one case, one seed, 256 calls")
    parser.add_argument("--json", type=Path, help="keep every run in FILE")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--case", action="append", help="default: all six")
    options = parser.parse_args()
    results = Results(options.json)
    for part in options.part or list(PARTS):
        print(f"\n== {part}")
        PARTS[part](options, results)
        results.write()


def _compare(options: argparse.Namespace, results: Results) -> None:
    names = options.case or [case.name for case in cases()]
    if options.quick:
        names = names[:1]
    budget, seeds = (256, 1) if options.quick else (BUDGET, options.seeds)
    jobs = comparison(seeds, names=names, budget=budget)
    print_comparison(run_all(jobs, results, workers=options.workers), budget=budget)


def _tau(options: argparse.Namespace, results: Results) -> None:
    names = options.case or NEAR
    budget, seeds = (256, 1) if options.quick else (BUDGET, options.seeds)
    names = names[:1] if options.quick else names
    jobs = [
        *(Job(case=name, method=m, seed=0, budget=budget) for name in names for m in _REFERENCES),
        *variants(TAUS, seeds, names=names, budget=budget),
    ]
    print_tau(run_all(jobs, results, workers=options.workers))


def _ablate(options: argparse.Namespace, results: Results) -> None:
    names = options.case or NEAR
    budget, seeds = (256, 1) if options.quick else (BUDGET, options.seeds)
    names = names[:1] if options.quick else names
    jobs = [
        *(Job(case=name, method=m, seed=0, budget=budget) for name in names for m in _REFERENCES),
        *variants(ABLATIONS, seeds, names=names, budget=budget),
    ]
    print_ablations(run_all(jobs, results, workers=options.workers))


def _goodput(options: argparse.Namespace, results: Results) -> None:
    results.parts["goodput"] = goodput_part(
        quick=options.quick, seeds=options.seeds, workers=options.workers
    )


def _patterns(options: argparse.Namespace, results: Results) -> None:
    results.parts["patterns"] = patterns_part(quick=options.quick)


_REFERENCES = ("exact", "heuristic")
PARTS: dict[str, Callable[[argparse.Namespace, Results], None]] = {
    "compare": _compare,
    "tau": _tau,
    "ablate": _ablate,
    "goodput": _goodput,
    "patterns": _patterns,
}


if __name__ == "__main__":
    main()
