"""How fast is the exact search? Seconds per question and per command, layouts per second.

    python -m bench.planner [--quick] [--json FILE]

The question is the same for all: 4,000 tokens in, 500 out, TTFT within 2,000 ms and TPOT within
50 ms, pipeline stages included. `seconds` is the search alone (the median of several runs, one
thread of numpy); `command_s` the whole of `shardwise plan`, with the start of Python, the plan file
and both plots. `strategies` are the layouts times every assignment of per-operator dims, all of
which the search covers in the `any` space.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from rl_search.enumeration import Space
from rl_search.planner import make_plan
from rl_search.request import PlanRequest

ISL, OSL, TTFT_MS, TPOT_MS = 4000, 500, 2000, 50
QUICK = (("deepseek-v3", "4x8xH200", Space.VLLM),)
FULL = (
    *QUICK,
    ("deepseek-v3", "4x8xH200", Space.ANY),
    ("llama-3.1-70b", "1x8xH100", Space.VLLM),
    ("llama-3.1-70b", "1x8xH100", Space.ANY),
    ("deepseek-v3", "18x4xGB200", Space.ANY),
    ("qwen3-235b-a22b", "16x8xB200", Space.ANY),
)
# What others are reported to take for such a question; nothing here runs them.
REPORTED = (("aiconfigurator", "about 60 s"), ("aisimulate", "minutes"))
ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one question, three runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    found = []
    heads = ("layouts", "strategies", "seconds", "layouts/s", "command s")
    print(f"{'model':18}{'cluster':12}{'space':6}" + "".join(f"{head:>12}" for head in heads))
    for model, cluster, space in QUICK if args.quick else FULL:
        row = searched(model, cluster, space, runs=3 if args.quick else 5)
        row["command_s"] = command_s(model, cluster, space)
        found.append(row)
        print(
            f"{model:18}{cluster:12}{space.value:6}{row['layouts']:>12,}"
            f"{row['strategies']:>12.3g}{row['seconds']:>12.3f}"
            f"{row['layouts_per_s']:>12,.0f}{row['command_s']:>12.2f}"
        )
    others = ", ".join(f"{name} {figure}" for name, figure in REPORTED)
    print(f"\nreported by others for such a question, not measured here: {others}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def searched(model: str, cluster: str, space: Space, *, runs: int) -> dict:
    request = PlanRequest(
        model=get_model(model),
        cluster=parse_cluster(cluster),
        workload=Workload(isl=ISL, osl=OSL),
        slo=Slo(ttft_s=TTFT_MS / 1e3, tpot_s=TPOT_MS / 1e3),
        space=space,
    )
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = make_plan(request)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    return {
        "model": model,
        "cluster": cluster,
        "space": space.value,
        "layouts": result.considered,
        "strategies": result.strategies,
        "seconds": median,
        "layouts_per_s": result.considered / median,
        "chosen": result.rows[0].layout.describe(),
        "dims": dict(result.plan.main.layout.dims),
    }


def command_s(model: str, cluster: str, space: Space) -> float:
    options = {
        "model": model,
        "cluster": cluster,
        "isl": str(ISL),
        "osl": str(OSL),
        "ttft": f"{TTFT_MS}ms",
        "tpot": f"{TPOT_MS}ms",
        "space": space.value,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "plan.json")
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "cli.main", "plan", *words, "--out", path],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
