"""How long until a new replica answers, beside vLLM's own API server on the same model?

    python bench/cold_start.py [--quick] [--json FILE]

Both load the bundled model on this machine's CPUs and answer one request; imports are warm in
both cases (one start of each is thrown away unless --quick). A replica starts inside a running
Ray cluster, as it does after a scale-up or a loss; the API server starts as a process. The ratio
is ours over vLLM's: below 1 a replica is there sooner. Once more a replica starts with nothing of
the weights in the page cache, as the first one of a node does; the others find them there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
os.environ["PYTHONPATH"] = str(REPOSITORY)
os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
)

from bench.weights import drop  # noqa: E402  # after the path is set
from serving.bundled import HEAVY, bundled_path  # noqa: E402
from serving.messages import EngineRequest, ReplicaReport  # noqa: E402
from serving.weights.spec import StartParts, WeightsSpec, model_key  # noqa: E402

ENGINE = {
    "max_model_len": 1024,
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 256 * 1024 * 1024,
}


def vllm_start_s() -> float:
    """Seconds from starting vLLM's API server to its first answer."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    arguments += ["--model", str(bundled_path(HEAVY)), "--port", str(port)]
    arguments += ["--host", "127.0.0.1", "--served-model-name", "m"]
    for name, value in ENGINE.items():
        flag = f"--{name.replace('_', '-')}"
        arguments += [flag] if value is True else [flag, str(value)]
    started_s = time.monotonic()
    process = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _first_answer(f"http://127.0.0.1:{port}/v1", limit_s=300.0)
        return time.monotonic() - started_s
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def _first_answer(url: str, *, limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    body = {"model": "m", "prompt": "Hello", "max_tokens": 1}
    while time.monotonic() < until_s:
        try:
            if httpx.post(f"{url}/completions", json=body, timeout=60.0).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise TimeoutError(f"no answer from {url} within {limit_s} s")


def replica_start() -> tuple[float, StartParts]:
    """Seconds from deploying an engine replica on a running Ray cluster to its first answer.

    And what the replica itself says of its start.
    """
    from ray import serve

    from serving.engine.replica import EngineReplica
    from serving.messages import EngineSpec

    bundle = {"CPU": 1.0}
    spec = EngineSpec(
        pool="main",
        model_name="m",
        model_source=str(bundled_path(HEAVY)),
        engine_args=dict(ENGINE),
        device_kind="cpu",
        bundles=(bundle,),
        controller="none",
        namespace="none",
        link_secret="bench",
        weights=WeightsSpec(key=model_key(HEAVY), namespace="bench", arbiter="none"),
    )
    deployment = serve.deployment(
        EngineReplica,
        name="main",
        ray_actor_options={"num_cpus": 0},
        placement_group_bundles=[dict(bundle)],
    )
    started_s = time.monotonic()
    handle = serve.run(deployment.bind(spec), name="bench", route_prefix=None)
    request = EngineRequest(
        kind="completions",
        body={"model": "m", "prompt": "Hello", "max_tokens": 1},
        request_id="bench",
        tokens=2.0,
    )
    report: ReplicaReport = handle.report.remote().result()
    asyncio.run(_answered(request, report=report, secret=spec.link_secret))
    spent_s = time.monotonic() - started_s
    serve.delete("bench")
    assert report.start is not None
    return spent_s, report.start


async def _answered(request: EngineRequest, *, report: ReplicaReport, secret: str) -> None:
    from serving.direct_link import DirectLink

    link = DirectLink(secret=secret, reach_s=10.0)
    link.observe([report])
    async for _ in link.call(request, replica_id=report.replica_id):
        pass
    await link.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one start of each")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs = 1 if arguments.quick else 3

    import ray
    from ray import serve

    theirs = [vllm_start_s() for _ in range(runs)]
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    try:
        ours = [replica_start() for _ in range(runs)]
        first = []
        for _ in range(max(1, runs - 1)):
            drop(bundled_path(HEAVY))
            first.append(replica_start())
    finally:
        serve.shutdown()
        ray.shutdown()
    kept = slice(0, None) if arguments.quick else slice(1, None)
    result = {
        "vllm_api_server_s": statistics.median(theirs[kept]),
        "replica_s": statistics.median(spent_s for spent_s, _ in ours[kept]),
        "replica_engine_s": statistics.median(parts.engine_s for _, parts in ours[kept]),
        "first_replica_s": statistics.median(spent_s for spent_s, _ in first),
        "first_replica_engine_s": statistics.median(parts.engine_s for _, parts in first),
        "replica_weights_s": max(parts.weights_s for _, parts in (*ours, *first)),
    }
    result["ratio"] = result["replica_s"] / result["vllm_api_server_s"]
    for name, value in result.items():
        print(f"{name:24} {value:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
