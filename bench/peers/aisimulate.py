"""What does aisimulate need to replay a trace, and what does it report?

    python -m bench.peers.aisimulate --python PYTHON [--trace FILE] [--workers N] [--json FILE]

PYTHON is the interpreter of an environment with aisimulate 0.13. It replays the trace offline on
N aggregated vLLM workers of Llama-3.1-70B on 4 H100 (TP4), round robin, its built-in `engine`
stack. The trace goes over as Mooncake JSONL: arrivals and lengths as our simulator reads them, each
prompt with blocks of its own, so no two share a prefix (blocks that a trace names are not passed
on). Batches are held to the limits of `bench.simulator`; the KV cache's size is aisimulate's own.

`wall_s` and `cpu_s` cover the whole command, start of Python and children included, `tool_s` what
aisimulate calls its wall time; `peak_bytes` is the largest of its processes. Converting the trace
is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.traces.files import open_trace

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
MODEL, HARDWARE, BACKEND, TP = "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", "vllm", 4
CHUNK, SEQUENCES = 8192, 256
BLOCK_TOKENS = 512

VERSION = "from importlib.metadata import version; print(version('aisimulate'))"
# A small process of its own starts the command: a child's peak begins with its parent's memory.
METER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
status = subprocess.run(sys.argv[2:]).returncode
wall_s = time.perf_counter() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as file:
    json.dump({"wall_s": wall_s, "cpu_s": used.ru_utime + used.ru_stime,
               "peak_bytes": used.ru_maxrss * 1024}, file)
sys.exit(status)
"""


class PeerError(Exception):
    """Aisimulate is not there, or did not replay the trace."""


@dataclass(frozen=True, kw_only=True)
class PeerRun:
    """One replay by aisimulate. What it does not report is None."""

    version: str
    wall_s: float
    cpu_s: float
    peak_bytes: int
    requests: int
    completed: int | None
    tool_s: float | None
    simulated_s: float | None
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_mean_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    itl_mean_s: float | None
    itl_p99_s: float | None
    requests_per_s: float | None
    output_tokens_per_s: float | None


def replay(python: Path, trace: Path, workers: int, folder: Path) -> PeerRun:
    """Replay `trace` on `workers` workers; files go to `folder`.

    Raises PeerError if `python` has no aisimulate, or if it fails.
    """
    # The environment's own packages, none of ours; no symlink resolved, or it is another Python.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    interpreter, at = str(python.absolute()), folder.resolve()
    version = installed_version(interpreter, inherited)
    rows, spent, out = at / "trace.jsonl", at / "spent.json", at / "out"
    requests = convert(trace, rows)
    config = at / "predict.yaml"
    config.write_text(json.dumps(question(rows, workers), indent=2) + "\n", encoding="utf-8")
    command = [interpreter, "-m", "aisimulate", "predict", "--config", str(config)]
    command += ["--output-dir", str(out), "--overwrite", "--format", "json"]
    run = subprocess.run(
        [interpreter, "-c", METER, str(spent), *command],
        cwd=at,
        env=inherited,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        said = (run.stderr or run.stdout).strip()[-2000:]
        raise PeerError(f"aisimulate {version} ended with status {run.returncode}: {said}")
    cost = json.loads(spent.read_text(encoding="utf-8"))
    told = json.loads((out / "prediction.json").read_text(encoding="utf-8"))
    completed = told.get("completed_requests")
    return PeerRun(
        version=version,
        wall_s=cost["wall_s"],
        cpu_s=cost["cpu_s"],
        peak_bytes=cost["peak_bytes"],
        requests=requests,
        completed=None if completed is None else int(completed),
        tool_s=seconds(told, "wall_time_ms"),
        simulated_s=seconds(told, "duration_ms"),
        ttft_mean_s=seconds(told, "mean_ttft_ms"),
        ttft_p50_s=seconds(told, "median_ttft_ms"),
        ttft_p99_s=seconds(told, "p99_ttft_ms"),
        tpot_mean_s=seconds(told, "mean_tpot_ms"),
        tpot_p50_s=seconds(told, "median_tpot_ms"),
        tpot_p99_s=seconds(told, "p99_tpot_ms"),
        itl_mean_s=seconds(told, "mean_itl_ms"),
        itl_p99_s=seconds(told, "p99_itl_ms"),
        requests_per_s=told.get("request_throughput_rps"),
        output_tokens_per_s=told.get("output_throughput_tok_s"),
    )


def installed_version(interpreter: str, environment: Mapping[str, str]) -> str:
    """The version of aisimulate that `interpreter` has."""
    try:
        run = subprocess.run(
            [interpreter, "-c", VERSION],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise PeerError(f"{interpreter} cannot be run: {error.strerror}") from error
    if run.returncode:
        raise PeerError(
            f"{interpreter} has no aisimulate; install aisimulate 0.13 in an environment of its "
            "own and pass that environment's python"
        )
    return run.stdout.strip()


def convert(trace: Path, rows: Path) -> int:
    """Write `trace` as Mooncake JSONL to `rows`; the number of requests."""
    requests = taken = 0
    with rows.open("w", encoding="utf-8") as file:
        for request in open_trace(trace):
            blocks = -(-request.prompt_tokens // BLOCK_TOKENS)
            row = {
                "timestamp": request.arrival_s * 1e3,
                "input_length": request.prompt_tokens,
                "output_length": request.output_tokens,
                "hash_ids": list(range(taken, taken + blocks)),
            }
            file.write(json.dumps(row) + "\n")
            taken += blocks
            requests += 1
    return requests


def question(rows: Path, workers: int) -> dict[str, object]:
    """What `aisimulate predict` is asked; JSON is YAML, too."""
    worker = {
        "parallelism": {"replicas": workers, "tensor": TP},
        "scheduler": {"max_batched_tokens": CHUNK, "max_sequences": SEQUENCES},
    }
    source = {
        "type": "trace",
        "format": "mooncake",
        "paths": [str(rows)],
        "block_size": BLOCK_TOKENS,
    }
    return {
        "traffic": {"source": source, "load": {"type": "trace_timestamps"}},
        "engine": {
            "mode": "aggregated",
            "model": MODEL,
            "hardware": HARDWARE,
            "backend": BACKEND,
            "workers": {"aggregated": worker},
        },
    }


def seconds(told: Mapping[str, float | None], name: str) -> float | None:
    """The milliseconds reported as `name`, in seconds."""
    milliseconds = told.get(name)
    return None if milliseconds is None else milliseconds / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--python", type=Path, required=True, help="python of an environment with aisimulate"
    )
    parser.add_argument(
        "--trace", type=Path, default=DATA / "traces" / "AzureLLMInferenceTrace_conv_2023.csv"
    )
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    if not args.trace.is_file():
        parser.error(f"{args.trace} is not a file; pass --trace")
    if args.workers < 1:
        parser.error("--workers must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = replay(args.python, args.trace, args.workers, Path(folder))
        except PeerError as error:
            parser.exit(1, f"{error}\n")
    for name, value in asdict(run).items():
        shown = f"{value:,.4f}" if isinstance(value, float) else str(value)
        print(f"{name:22}{shown:>32}")
    if args.json:
        args.json.write_text(json.dumps(asdict(run), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
