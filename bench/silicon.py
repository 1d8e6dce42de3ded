"""How far is the cost model from measured serving runs, and how far is aiconfigurator?

    python -m bench.silicon [--quick] [--untuned] [--json FILE]
                            [--runs FILE] [--predictions FILE] [--models DIR]

Prints the median absolute percentage error of TPOT, TTFT and tokens/s/GPU by backend and
precision on the rows that aiconfigurator also predicts, and how well both rank the layouts of a
condition. Nothing is fitted here, but constants were set by hand with these runs in view: 16
settings were compared on the quarter of the rows whose id has crc32 % 4 == 0. `--untuned` leaves
that quarter out. What is left is not independent of it: the same models, systems and conditions
occur in both, and every tenth row of all of them had been looked at before.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cluster.costmodel.coefficients import DEFAULT, Coefficients
from cluster.costmodel.estimate import estimate
from cluster.model.devices import get_device
from cluster.model.formats import NumberFormat
from cluster.model.hardware import NodeGroup
from cluster.model.hf_config import read_model
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import Group, LayerKind, ModelSpec
from cluster.model.operators import ROUTER
from cluster.model.workload import Workload

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
SYSTEMS = {
    "h100_sxm": ("H100", 8),
    "h200_sxm": ("H200", 8),
    "b200_sxm": ("B200", 8),
    "b300_sxm": ("B300", 8),
    "gb200": ("GB200", 4),
}
FORMATS = {
    "fp8": NumberFormat.FP8,
    "fp8_block": NumberFormat.FP8_BLOCK,
    "nvfp4": NumberFormat.NVFP4,
    "int4_wo": NumberFormat.INT4,
    "bf16": NumberFormat.BF16,
}
# The runs do not say what their KV cache is stored in. Assumption: fp8 wherever weights are.
KV_FP8 = frozenset({"fp8", "fp4"})
HEADROOM = 0.1  # serving engines take 90 % of the memory by default


@dataclass(frozen=True)
class Run:
    """One measured row with both predictions, milliseconds and tokens/s/GPU."""

    row: dict[str, str]
    peer: dict[str, str]
    ttft_ms: float
    tpot_ms: float

    @property
    def devices(self) -> int:
        """GPUs of the run."""
        return int(self.row["tp"]) * int(self.row["attention_dp"]) * int(self.row["pp"])

    def throughput(self, ttft_ms: float, tpot_ms: float) -> float:
        """Output tokens/s/GPU of a closed loop, by Little's law."""
        osl = int(self.row["osl"])
        seconds = (ttft_ms + (osl - 1) * tpot_ms) / 1e3
        return int(self.row["concurrency"]) * osl / seconds / self.devices


def quantise(model: ModelSpec, *, gemm: str, experts: str, precision: str) -> ModelSpec:
    """The model in the formats a run names; an empty name keeps the checkpoint's own."""

    def kind_of(kind: LayerKind) -> LayerKind:
        operators = []
        for op in kind.operators:
            name = experts if op.group is Group.EXPERTS else gemm
            known = FORMATS.get(name)
            operators.append(
                op if known is None or op.name == ROUTER else replace(op, format=known)
            )
        return replace(kind, operators=tuple(operators))

    kv = NumberFormat.FP8 if precision in KV_FP8 else model.kv_format
    layers = tuple((kind_of(kind), count) for kind, count in model.layers)
    return replace(model, layers=layers, kv_format=kv)


def predict(
    rows: list[dict[str, str]], models: Path, *, coefficients: Coefficients = DEFAULT
) -> dict[str, tuple[float, float]]:
    """(TTFT ms, TPOT ms) by row id; rows of one model, system and workload go in one table."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        names = ("config", "system", "gemm_quant", "moe_quant", "precision", "isl", "osl")
        groups[tuple(row[name] for name in names)].append(row)
    found: dict[str, tuple[float, float]] = {}
    for (config, system, gemm, experts, precision, isl, osl), members in groups.items():
        model = quantise(
            read_model(models / f"{config}.json"), gemm=gemm, experts=experts, precision=precision
        )
        device, per_node = SYSTEMS[system]
        group = NodeGroup(nodes=16, devices_per_node=per_node, device=get_device(device))
        table = LayoutTable.from_layouts(_layout(row, moe=bool(model.experts)) for row in members)
        estimates = estimate(
            model,
            group,
            table,
            Workload(isl=int(isl), osl=int(osl)),
            concurrency=np.array([int(row["concurrency"]) for row in members]),
            headroom=HEADROOM,
            coefficients=coefficients,
        )
        for index, row in enumerate(members):
            found[row["id"]] = (
                float(estimates.ttft_s[index]) * 1e3,
                float(estimates.tpot_s[index]) * 1e3,
            )
    return found


def _layout(row: dict[str, str], *, moe: bool) -> Layout:
    tp, dp = int(row["tp"]), int(row["attention_dp"])
    moe_tp, moe_ep = (int(row["moe_tp"]), int(row["moe_ep"])) if moe else (tp * dp, 1)
    return Layout(
        tp=tp,
        dp=dp,
        pp=int(row["pp"]),
        moe_tp=moe_tp,
        moe_ep=moe_ep,
        max_num_seqs=max(int(row["concurrency"]), 1),
        max_num_batched_tokens=8192,
    )


def errors(runs: Iterable[Run]) -> dict[str, float]:
    """Median absolute percentage errors, ours and the peer's."""
    ours: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        ttft, tpot = float(run.row["ttft_ms"]), float(run.row["tpot_ms"])
        truth = run.throughput(ttft, tpot)
        peer = (float(run.peer["ttft_ms"]), float(run.peer["tpot_ms"]))
        for name, (a, b) in {"ours": (run.ttft_ms, run.tpot_ms), "peer": peer}.items():
            ours[f"{name}_ttft"].append(abs(a / ttft - 1))
            ours[f"{name}_tpot"].append(abs(b / tpot - 1))
            ours[f"{name}_tput"].append(abs(run.throughput(a, b) / truth - 1))
        ours["ours_tpot_bias"].append(run.tpot_ms / tpot - 1)
        ours["ours_ttft_bias"].append(run.ttft_ms / ttft - 1)
    return {name: float(np.median(values)) for name, values in ours.items()}


def ranking(runs: list[Run]) -> dict[str, float]:
    """How often the layout predicted best is the measured one, where a condition has >= 2."""
    names = ("config", "system", "backend", "precision", "isl", "osl", "concurrency")
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[tuple(run.row[name] for name in names)].append(run)
    hits: dict[str, list[float]] = {"ours_best": [], "peer_best": [], "chance": []}
    for members in groups.values():
        if len(members) < 2:
            continue
        truth = [m.throughput(float(m.row["ttft_ms"]), float(m.row["tpot_ms"])) for m in members]
        ours = [m.throughput(m.ttft_ms, m.tpot_ms) for m in members]
        peer = [m.throughput(float(m.peer["ttft_ms"]), float(m.peer["tpot_ms"])) for m in members]
        best = int(np.argmax(truth))
        hits["ours_best"].append(float(np.argmax(ours) == best))
        hits["peer_best"].append(float(np.argmax(peer) == best))
        hits["chance"].append(1.0 / len(members))
    return {name: float(np.mean(values)) for name, values in hits.items()} | {
        "conditions": float(len(hits["chance"]))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="every tenth row only")
    parser.add_argument(
        "--untuned", action="store_true", help="without the rows constants were set on"
    )
    parser.add_argument("--runs", type=Path, default=DATA / "silicon" / "runs.csv")
    parser.add_argument(
        "--predictions", type=Path, default=DATA / "silicon" / "aiconfigurator_predictions.csv"
    )
    parser.add_argument("--models", type=Path, default=DATA / "models")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    for path in (args.runs, args.predictions):
        if not path.is_file():
            parser.error(f"{path} is not a file; pass --runs and --predictions")
    with args.runs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if args.untuned:
        rows = [row for row in rows if zlib.crc32(row["id"].encode()) % 4]
    if args.quick:
        rows = rows[::10]
    with args.predictions.open(newline="") as file:
        peers = {row["id"]: row for row in csv.DictReader(file) if row["tpot_ms"]}
    start = time.perf_counter()
    predicted = predict(rows, args.models)
    seconds = time.perf_counter() - start
    runs = [Run(row, peers[row["id"]], *predicted[row["id"]]) for row in rows if row["id"] in peers]
    table: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        table["all"].append(run)
        table[f"{run.row['backend']} {run.row['precision'] or 'as stored'}"].append(run)
        table[run.row["system"]].append(run)
        table[run.row["config"]].append(run)
    columns = ("tpot", "ttft", "tput")
    print(f"{len(rows)} rows, {len(runs)} also predicted by aiconfigurator; {seconds:.2f} s")
    print("median |error| %, ours / aiconfigurator")
    print(f"{'':42}{'n':>6}" + "".join(f"{name:>16}" for name in columns) + f"{'tpot bias':>12}")
    report: dict[str, dict[str, float]] = {}
    for name in ["all", *sorted(set(table) - {"all"})]:
        figures = errors(table[name])
        report[name] = figures | {"rows": float(len(table[name]))}
        cells = "".join(
            f"{figures[f'ours_{c}'] * 100:>8.1f} /{figures[f'peer_{c}'] * 100:>5.1f} "
            for c in columns
        )
        print(f"{name:42}{len(table[name]):>6}{cells}{figures['ours_tpot_bias'] * 100:>12.1f}")
    report["ranking"] = ranking(runs)
    best = report["ranking"]
    print(
        f"best layout of a condition found ({best['conditions']:.0f} conditions): "
        f"ours {best['ours_best']:.0%}, aiconfigurator {best['peer_best']:.0%}, "
        f"chance {best['chance']:.0%}"
    )
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
