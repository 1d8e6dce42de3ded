"""How fast is the exact search? Seconds per question and layouts per second, by model and cluster.

    python -m bench.planner [--quick] [--json FILE]

The median of several runs on this machine; the search is one thread of numpy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from rl_search.planner import make_plan
from rl_search.request import PlanRequest
from rl_search.space import Space

QUICK = (("deepseek-v3", "4x8xH200", Space.VLLM),)
FULL = (
    *QUICK,
    ("llama-3.1-70b", "1x8xH100", Space.VLLM),
    ("deepseek-v3", "4x8xH200", Space.ANY),
    ("deepseek-v3", "18x4xGB200", Space.ANY),
    ("qwen3-235b-a22b", "16x8xB200", Space.ANY),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one question, three runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    found = []
    print(f"{'model':20}{'cluster':14}{'space':7}{'layouts':>9}{'seconds':>9}{'layouts/s':>12}")
    for model, cluster, space in QUICK if args.quick else FULL:
        request = PlanRequest(
            model=get_model(model),
            cluster=parse_cluster(cluster),
            workload=Workload(isl=4000, osl=500),
            slo=Slo(ttft_s=2.0, tpot_s=0.05),
            space=space,
        )
        seconds, layouts = [], 0
        for _ in range(3 if args.quick else 5):
            start = time.perf_counter()
            layouts = make_plan(request).considered
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        found.append(
            {
                "model": model,
                "cluster": cluster,
                "space": space.value,
                "layouts": layouts,
                "seconds": median,
                "layouts_per_s": layouts / median,
            }
        )
        print(
            f"{model:20}{cluster:14}{space.value:7}{layouts:>9,}{median:>9.3f}"
            f"{layouts / median:>12,.0f}"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
