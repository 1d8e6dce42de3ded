"""How far is the cost model from published tables that it was not made from?

    python -m bench.published [--quick] [--json FILE] [--rows FILE] [--splitwise FILE]

Each row of the tables is predicted where it says enough (model, device, degrees, lengths, load);
what is left out is counted by reason. Two kinds of load are understood. Max load: every request is
queued at once, so as many run as the KV cache admits, at most 2,048 sequences and 8,192 tokens a
step (TensorRT-LLM's documented `max_batch_size` and `max_num_tokens`), with 5 % of the memory left
free (its benchmark's KV fraction of 0.95). One phase only: prefill at a given number of tokens per
device, or decode at a given number of sequences per device. Nothing is fitted here.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.published_models import (
    bloom_176b,
    llama2_70b,
    nodes_for,
    published_device,
    published_model,
)
from cluster.costmodel.estimate import EstimateTable, estimate
from cluster.model.devices import get_device
from cluster.model.hardware import NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
MAX_BATCH, MAX_TOKENS = 2048, 8192
HEADROOM = 0.05
_PER_DEVICE = {"per_gpu": 1.0, "per_node8": 8.0}
# What another command here answers, or what no figure of ours means.
_ELSEWHERE = "a ratio between layouts of GPT-MoE-1.8T (bench.gpt_moe_1p8t answers it)"
_TAKES_BACKEND = "backend" in inspect.signature(estimate).parameters


class UnansweredError(Exception):
    """A row that the cost model is not asked, and why."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A row with our figure beside the published one."""

    row: dict[str, str]
    published: float
    ours: float

    @property
    def error(self) -> float:
        """Relative, positive where ours is larger."""
        return self.ours / self.published - 1.0


def predict(row: dict[str, str]) -> float:
    """Our figure for a row in its own unit. Raises UnansweredError saying what is missing."""
    metric, load = row["metric"], row["concurrency_or_batch"]
    if "ratio" in metric:
        raise UnansweredError(_ELSEWHERE)
    if "speedup" in metric:
        raise UnansweredError("a ratio whose baseline is not fully described")
    if "MTP" in row["precision"] or "MTP" in load:
        raise UnansweredError("speculative decoding (MTP) of unstated acceptance")
    device = published_device(row["gpu"])
    if device is None:
        raise UnansweredError(f"device {row['gpu']} is not in the catalogue")
    model = published_model(row["model"], row["precision"])
    if model is None:
        raise UnansweredError(f"model {row['model']} or its number format is not at hand")
    layout = _layout(row, model)
    group = nodes_for(row["gpu"], layout.devices_per_replica, device)
    backend = _backend(row["source"])
    if load.startswith("max load"):
        return _max_load(row, model, group, layout, backend=backend)
    if metric.startswith("prefill_throughput"):
        return _prefill(row, model, group, layout, backend=backend)
    if metric.startswith("decode_throughput"):
        return _decode(row, model, group, layout, backend=backend)
    raise UnansweredError("the load is not described")


def _max_load(
    row: dict[str, str], model: ModelSpec, group: NodeGroup, layout: Layout, *, backend: str
) -> float:
    asked = Workload(isl=_count(row, "isl"), osl=_count(row, "osl"))
    layout = replace(layout, max_num_seqs=MAX_BATCH * layout.dp, max_num_batched_tokens=MAX_TOKENS)
    made = ask(model, group, layout, asked, headroom=HEADROOM, backend=backend)
    if not made.fits[0]:
        raise UnansweredError("measured, but by our memory model it does not fit")
    value = float(made.tokens_per_s_per_device[0])
    return value * layout.devices_per_replica if row["metric"].endswith("total") else value


def _prefill(
    row: dict[str, str], model: ModelSpec, group: NodeGroup, layout: Layout, *, backend: str
) -> float:
    stated = re.search(r"([0-9]+) tokens/(?:device|GPU)", row["concurrency_or_batch"])
    prompt = _count(row, "isl")
    layout = replace(
        layout, max_num_batched_tokens=int(stated.group(1)) if stated else max(prompt, 16_384)
    )
    made = ask(model, group, layout, Workload(isl=prompt, osl=1), headroom=0.0, backend=backend)
    return float(made.prefill_tokens_per_s[0]) / layout.devices_per_replica * _unit(row)


def _decode(
    row: dict[str, str], model: ModelSpec, group: NodeGroup, layout: Layout, *, backend: str
) -> float:
    load = row["concurrency_or_batch"]
    stated = re.search(r"([0-9]+) seqs/GPU", load)
    if stated is None:
        raise UnansweredError("decode of an unstated number of sequences")
    if "production" in load:
        raise UnansweredError("a production load, whose pauses are not stated")
    context = _count(row, "isl") + (_count(row, "osl") // 2 if row["osl"] else 0)
    batch = int(stated.group(1))
    tpot = decode_step_s(model, group, layout, batch=batch, context=context, backend=backend)
    return batch * layout.dp / tpot / layout.devices_per_replica * _unit(row)


def decode_step_s(
    model: ModelSpec, group: NodeGroup, layout: Layout, *, batch: int, context: int, backend: str
) -> float:
    """Seconds of a step that only decodes, `batch` sequences per data-parallel rank.

    One prompt token and twice the context as output: the mean context is the one asked for and
    next to no prefill is mixed in. Half of that window is empty on average, so memory is no bound.
    """
    device = replace(group.device, memory_bytes=8.0 * group.device.memory_bytes)
    roomy = replace(group, device=device)
    layout = replace(layout, max_num_seqs=batch * layout.dp, max_num_batched_tokens=MAX_TOKENS)
    asked = Workload(isl=1, osl=max(2 * context - 2, 2))
    return float(ask(model, roomy, layout, asked, headroom=0.0, backend=backend).tpot_s[0])


def ask(
    model: ModelSpec,
    group: NodeGroup,
    layout: Layout,
    workload: Workload,
    *,
    headroom: float,
    backend: str,
) -> EstimateTable:
    """The estimate of one layout with its batch full, for the engine the row was measured on."""
    table = LayoutTable.from_layouts([layout])
    engine = {"backend": backend} if _TAKES_BACKEND else {}
    return estimate(
        model,
        group,
        table,
        workload,
        concurrency=table.max_num_seqs,
        headroom=headroom,
        **engine,  # type: ignore[arg-type]
    )


def _layout(row: dict[str, str], model: ModelSpec) -> Layout:
    degrees = [row[name] for name in ("tp", "pp", "ep", "dp")]
    if not all(text.isdigit() for text in (*degrees, row["n_gpu"])):
        raise UnansweredError("the layout is not stated in numbers")
    tp, pp, ep, dp = (int(text) for text in degrees)
    if tp * pp * dp != int(row["n_gpu"]):
        raise UnansweredError("tp x pp x dp is not the number of GPUs")
    moe_ep = ep if model.experts else 1
    return Layout(tp=tp, dp=dp, pp=pp, moe_tp=tp * dp // moe_ep, moe_ep=moe_ep)


def _count(row: dict[str, str], name: str) -> int:
    if not row[name].isdigit():
        raise UnansweredError("the request lengths are not stated in numbers")
    return int(row[name])


def _unit(row: dict[str, str]) -> float:
    for ending, devices in _PER_DEVICE.items():
        if row["metric"].endswith(ending):
            return devices
    raise UnansweredError(f"metric {row['metric']} is not understood")


def _backend(source: str) -> str:
    if "lmsys" in source:
        return "sglang"
    return "trtllm" if "TensorRT-LLM" in source else "vllm"


def answer(rows: Iterable[dict[str, str]]) -> tuple[list[Answer], Counter[tuple[str, str]]]:
    """The answered rows, and how many of which metric are not, by reason."""
    answers: list[Answer] = []
    reasons: Counter[tuple[str, str]] = Counter()
    for row in rows:
        try:
            ours = predict(row)
        except UnansweredError as reason:
            metric = re.sub(r" \(.*", "", row["metric"])
            reasons[(metric, str(reason))] += 1
        else:
            answers.append(Answer(row=row, published=float(row["value"]), ours=ours))
    return answers, reasons


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    """Rows, median and 90th percentile of the absolute error, and the median signed one."""
    errors = np.array([entry.error for entry in answers])
    return {
        "rows": float(len(errors)),
        "median_abs_error": float(np.median(np.abs(errors))),
        "p90_abs_error": float(np.quantile(np.abs(errors), 0.9)),
        "median_error": float(np.median(errors)),
    }


def grouped(answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """The summary of all, and by source, metric, model, GPU and pipeline depth."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for entry in answers:
        row = entry.row
        groups["all"].append(entry)
        groups[f"source {_short(row['source'])}"].append(entry)
        for name in ("metric", "model", "gpu"):
            groups[f"{name} {row[name]}"].append(entry)
        groups["pp > 1" if int(row["pp"]) > 1 else "pp = 1"].append(entry)
        if int(row["pp"]) > 1:
            groups[f"pp = {row['pp']}, {row['model']}"].append(entry)
    first = ["all", "pp = 1", "pp > 1"]
    names = [name for name in first if name in groups] + sorted(set(groups) - set(first))
    return {name: summary(groups[name]) for name in names}


def _short(source: str) -> str:
    if "perf-overview" in source:
        return "TensorRT-LLM overview " + ("v1.0" if "(v1.0)" in source else "main")
    return re.sub(r"https?://(www\.)?", "", source)[:48]


def splitwise(rows: Iterable[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Errors on Splitwise's measured prompt and token times (vLLM of 2023, 16 bits, one node).

    Devices under a power cap (`-pcap`) are left out: no catalogue figure describes them.
    """
    models = {"llama2-70b": llama2_70b(), "bloom-176b": bloom_176b()}
    repeats: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    names = ("model", "hardware", "tensor_parallel", "prompt_size", "batch_size", "token_size")
    for row in rows:
        seconds = (float(row["prompt_time"]) / 1e3, float(row["token_time"]) / 1e3)
        repeats[tuple(row[name] for name in names)].append(seconds)
    errors: dict[str, list[Answer]] = defaultdict(list)
    for key, times in repeats.items():
        if key[0] not in models or key[1].endswith("-pcap"):
            continue
        tp, prompt, batch, tokens = (int(float(text)) for text in key[2:])
        device = get_device("a100-80" if key[1].startswith("a100") else "h100")
        group = NodeGroup(nodes=1, devices_per_node=8, device=device)
        layout = Layout(tp=tp, moe_tp=tp, max_num_seqs=batch)
        whole = replace(layout, max_num_batched_tokens=prompt * batch)
        asked = Workload(isl=prompt, osl=1)
        made = ask(models[key[0]], group, whole, asked, headroom=0.0, backend="vllm")
        prompt_s = prompt * batch / float(made.prefill_tokens_per_s[0])
        token_s = decode_step_s(
            models[key[0]],
            group,
            layout,
            batch=batch,
            context=prompt + tokens // 2,
            backend="vllm",
        )
        measured = np.median(np.array(times), axis=0)
        for phase, ours, theirs in (
            ("prompt", prompt_s, float(measured[0])),
            ("token", token_s, float(measured[1])),
        ):
            entry = Answer(row={}, published=theirs, ours=ours)
            errors[f"{phase} time"].append(entry)
            errors[f"{phase} time, {key[0]} {key[1]}"].append(entry)
    return {name: summary(errors[name]) for name in sorted(errors)}


def _print(title: str, table: dict[str, dict[str, float]]) -> None:
    print(f"\n{title:58}{'rows':>6}{'median |e|':>12}{'p90 |e|':>10}{'median e':>10}")
    for name, figures in table.items():
        print(
            f"{name:58}{figures['rows']:>6.0f}{figures['median_abs_error']:>11.1%}"
            f"{figures['p90_abs_error']:>10.1%}{figures['median_error']:>+10.1%}"
        )


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="every fifth row only")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rows", type=Path, default=DATA / "silicon" / "published.csv")
    parser.add_argument(
        "--splitwise",
        type=Path,
        default=DATA / "hardware" / "splitwise_perf_model_a100_h100.csv",
    )
    args = parser.parse_args(arguments)
    if not args.rows.is_file():
        parser.error(f"{args.rows} is not a file; pass --rows")
    rows = _read(args.rows)[:: 5 if args.quick else 1]
    answers, reasons = answer(rows)
    print(f"{len(rows)} published rows: {len(answers)} answered, {reasons.total()} not:")
    for (metric, reason), count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count:>4}  {metric}: {reason}")
    report: dict[str, object] = {
        "rows": len(rows),
        "answered": len(answers),
        "unanswered": {f"{metric}: {reason}": n for (metric, reason), n in reasons.items()},
    }
    if answers:
        table = grouped(answers)
        report["errors"] = table
        _print("published tables", table)
    if args.splitwise.is_file():
        measured = _read(args.splitwise)
        # Repeats of one condition stand together, so a prefix would drop whole devices.
        phases = splitwise(measured[:: 5 if args.quick else 1])
        report["splitwise"] = phases
        _print("Splitwise, measured phases (without power caps)", phases)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
