"""Plans that the chart is rendered from: those of `shardwise plan`, and small ones made up."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
LLAMA = ("llama-3.1-70b", "2x8xH100", "--isl", "2000", "--osl", "300", "--ttft", "2s")
DEEPSEEK = ("deepseek-v3", "4x8xH200", "--isl", "4000", "--osl", "500", "--ttft", "3s")


@cache
def planned(model: str, cluster: str, *options: str) -> str:
    """What `shardwise plan` writes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        command = [sys.executable, "-m", "cli.main", "plan", "--model", model, "--cluster", cluster]
        done = subprocess.run(
            [*command, *options, "--max-dp", "1", "--out", str(path)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return path.read_text()


def pool(name: str = "main", *, tp: int = 4, pp: int = 1, **fields: Any) -> dict[str, Any]:
    """A pool of a plan."""
    return {
        "name": name,
        "model": {
            "name": f"model-{name}",
            "source": f"org/{name}",
            "params": 70_553_706_496,
            "weight_bytes": 141e9,
            "max_context": 8192,
        },
        "layout": {"tp": tp, "pp": pp, "moe_tp": tp},
        "replicas": {"minimum": 1, "initial": 1, "maximum": 2},
        "engine_args": {"tensor_parallel_size": tp, "pipeline_parallel_size": pp},
        **fields,
    }


def plan(*pools: dict[str, Any], **cluster: Any) -> str:
    """A plan's text: for 2 nodes of 8 devices unless `cluster` says otherwise."""
    there = {"spec": "2x8xH100", "device": "h100", "nodes": 2, "devices_per_node": 8, **cluster}
    data = {
        "version": 1,
        "cluster": there,
        "workload": {"isl": 100, "osl": 100},
        "slo": {},
        "pools": list(pools) or [pool()],
    }
    return json.dumps(data)


def changed(text: str, *path: str | int, to: Any) -> str:
    """A plan with one field changed."""
    data = deepcopy(json.loads(text))
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return json.dumps(data)
