"""How fast is vLLM on CPU cores, and what does the cost model say about the same steps?

Starts the bundled model (or any directory) with vLLM's offline `LLM`, as a replica of one rank runs
it: eager, fp32, `--threads` cores (Ray gives a rank of one CPU one thread). Measured are decode at
a few batch sizes, as the difference of two runs of different output length, so that prefill and
start-up cancel, and the time to the first token of one prompt. The cost model's estimate of one
core stands beside each figure, with the ratio of the two; `process_bytes` is what the engine's
processes hold beside weights and cache (proportional set size).

    python -m bench.cpu_engine [--quick] [--threads N] [--model NAME|DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import make_case
from cluster.costmodel.estimate import estimate
from cluster.costmodel.precision import as_held
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.errors import InputError
from cluster.model.catalogue import get_model
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload
from cluster.ray_backend.inventory import cpu_group
from serving.bundled import HEAVY, bundled_path

BATCHES = (1, 4, 16)
PROMPTS = (256, 1024)
CHUNK = 512
SHORT_PROMPT = 16
KV_BYTES = 1024**3
# vLLM's CPU build turns `uni` into `mp`, but not the class by its name. With `mp` a worker process
# computes while the engine's spins waiting for it: a replica then keeps two cores busy.
EXECUTORS = {"mp": "mp", "uni": "vllm.v1.executor.uniproc_executor.UniProcExecutor"}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured figure beside the model's, and measured over estimated."""

    what: str
    measured: float
    estimated: float

    @property
    def ratio(self) -> float:
        """Measured over estimated."""
        return self.measured / self.estimated


def start(model: Path, *, threads: int, executor: str) -> tuple[Any, float]:
    """A vLLM engine on `threads` cores, and the seconds it took to start after the imports."""
    os.environ.update(
        OMP_NUM_THREADS=str(threads),
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="WARNING",
    )
    from vllm import LLM

    begin = time.perf_counter()
    engine = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=max(BATCHES),
        max_num_batched_tokens=CHUNK,
        kv_cache_memory_bytes=KV_BYTES,
        enable_prefix_caching=False,
        distributed_executor_backend=EXECUTORS[executor],
    )
    return engine, time.perf_counter() - begin


def run_s(engine: Any, *, prompts: int, length: int, output: int, repeats: int) -> float:
    """Median seconds of `prompts` random prompts of `length` tokens with `output` tokens each."""
    from vllm import SamplingParams

    rng = random.Random(0)
    sampling = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    seconds = []
    for _ in range(repeats):
        batch = [
            {"prompt_token_ids": [rng.randrange(100, 40_000) for _ in range(length)]}
            for _ in range(prompts)
        ]
        begin = time.perf_counter()
        engine.generate(batch, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def measure(engine: Any, model: ModelSpec, *, quick: bool) -> list[Figure]:
    """Decode tokens/s at every batch size and prompt tokens/s of a single prompt."""
    group = cpu_group()
    repeats, steps = (2, 32) if quick else (5, 64)
    run_s(engine, prompts=1, length=SHORT_PROMPT, output=4, repeats=1)
    figures = []
    for batch in BATCHES:
        first, last = (
            run_s(engine, prompts=batch, length=SHORT_PROMPT, output=output, repeats=repeats)
            for output in (1, 1 + steps)
        )
        figures.append(
            Figure(
                what=f"decode tokens/s, {batch} in flight",
                measured=batch * steps / (last - first),
                estimated=decode_rate(model, group, batch=batch, context=SHORT_PROMPT + steps // 2),
            )
        )
    for length in PROMPTS:
        seconds = run_s(engine, prompts=1, length=length, output=1, repeats=repeats)
        figures.append(
            Figure(
                what=f"prompt tokens/s, {length} tokens alone",
                measured=length / seconds,
                estimated=length / first_token_s(model, group, length=length),
            )
        )
    return figures


def process_bytes() -> int:
    """Memory of this process and all it started, shared pages counted once."""
    here = psutil.Process()
    return sum(
        int(process.memory_full_info().pss) for process in [here, *here.children(recursive=True)]
    )


def decode_rate(model: ModelSpec, group: NodeGroup, *, batch: int, context: int) -> float:
    """Tokens/s of decode steps alone, `batch` sequences at `context` tokens, on one core."""
    coefficients = default_coefficients()
    table = LayoutTable.from_layouts([Layout()])
    case = make_case(as_held(model, group.device), group, table, coefficients)
    b, none, at, one = (np.array([float(value)]) for value in (batch, 0, context, 1))
    load = StepLoad(
        decode=b,
        context=at,
        prefill=none,
        prompt=at,
        routed=b,
        queries=one,
        cached=none,
        offloaded=none,
    )
    return batch / float(total(step_parts(case, load, coefficients))[0])


def first_token_s(model: ModelSpec, group: NodeGroup, *, length: int) -> float:
    """Seconds to the first token of one prompt of `length` tokens alone on one core."""
    table = LayoutTable.from_layouts([Layout(max_num_batched_tokens=CHUNK)])
    made = estimate(model, group, table, Workload(isl=length, osl=2), concurrency=1)
    return float(made.ttft_s[0])


def main() -> None:
    """Measure, print, and optionally write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two repeats of 32 steps")
    parser.add_argument("--threads", type=int, default=1, help="cores the engine computes on")
    parser.add_argument("--executor", choices=sorted(EXECUTORS), default="uni")
    parser.add_argument("--model", default=HEAVY, help="a bundled model's name, or a directory")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    path = Path(arguments.model)
    try:
        path = path if path.is_dir() else bundled_path(arguments.model)
    except InputError as error:
        parser.error(str(error))
    engine, start_s = start(path, threads=arguments.threads, executor=arguments.executor)
    model = get_model(str(path))
    figures = measure(engine, model, quick=arguments.quick)
    held = process_bytes() - round(model.weight_bytes) - KV_BYTES
    report = {
        "model": path.name,
        "threads": arguments.threads,
        "start_s": round(start_s, 1),
        "process_bytes": held,
        "figures": [asdict(figure) | {"ratio": figure.ratio} for figure in figures],
    }
    print(
        f"{path.name}, {arguments.threads} thread(s), started in {start_s:.0f} s, "
        f"{held / 1024**3:.2f} GiB beside weights and cache"
    )
    for figure in figures:
        print(
            f"{figure.what:<36} measured {figure.measured:8.1f}  estimated "
            f"{figure.estimated:8.1f}  ratio {figure.ratio:.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
