"""What was measured: serving runs at a fixed number of requests in flight, one row per run.

Exports of InferenceX count the degrees of some layouts twice, in two spellings, m > 1:

    (tp=1, attention_dp=m*m, moe_tp=m, moe_ep=m)  means  tp=1, dp=m, moe_tp=1, moe_ep=m on m GPUs
    (tp=m, attention_dp=m, moe_tp=1, moe_ep=m*m)  means  tp=m, dp=1, moe_tp=1, moe_ep=m on m GPUs

The evidence: beside such rows stand plain ones of the same condition with the same measured
values, to the digits both keep (for the second spelling: runs of one model, Kimi-K2.5), and the
public recipes agree (SemiAnalysisAI/InferenceX, nvidia-master.yaml, April 2026: tp=m, ep=m with
`dp-attn` for the first, without for the second). A few recipes of high concurrency have `dp-attn`
and still export the second spelling; the columns do not tell those, so they are read as the rest.

`read_degrees` undoes that. The GPUs a run is charged for are those of its columns as written, so
that figures per GPU agree with anyone else's reading of the same file.

Invariants: ids are unique; counts are at least 1; measured times are positive or None. Whether
the degrees make a valid expert grid is not judged here: that is a finding about the row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from cluster.calibration.csv_table import Row, check_unique, read_table

COLUMNS = (
    "id",
    "model",
    "config",
    "system",
    "backend",
    "backend_version",
    "precision",
    "gemm_quant",
    "moe_quant",
    "isl",
    "osl",
    "concurrency",
    "tp",
    "pp",
    "attention_dp",
    "moe_tp",
    "moe_ep",
    "ttft_ms",
    "tpot_ms",
)
PREDICTION_COLUMNS = ("id", "ttft_ms", "tpot_ms")


class Spelling(StrEnum):
    """How the columns of a run count its degrees."""

    PLAIN = "plain"
    DATA_PARALLEL_TWICE = "data_parallel_twice"
    TENSOR_PARALLEL_TWICE = "tensor_parallel_twice"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One row of a runs file; times in seconds, None where not measured.

    `config` names the model's configuration (`org--name`), `precision`, `gemm_quant` and
    `moe_quant` may be empty: stored as the checkpoint has it.
    """

    id: str
    model: str
    config: str
    system: str
    backend: str
    backend_version: str
    precision: str
    gemm_quant: str
    moe_quant: str
    isl: int
    osl: int
    concurrency: int
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    ttft_s: float | None
    tpot_s: float | None

    @property
    def devices(self) -> int:
        """GPUs the run is charged for: by its columns as written."""
        return self.tp * self.pp * self.attention_dp

    def describe(self) -> str:
        """The layout as written, for messages."""
        return (
            f"tp={self.tp} pp={self.pp} attention_dp={self.attention_dp} "
            f"moe_tp={self.moe_tp} moe_ep={self.moe_ep}"
        )


def read_runs(path: Path) -> tuple[Run, ...]:
    """The runs of the CSV file at `path`, in its order.

    Raises ConfigError naming line, column, value and fix of the first cell that is wrong, or both
    lines of an id that stands twice.
    """
    rows = read_table(path, COLUMNS)
    check_unique(rows, "id")
    return tuple(_run(row) for row in rows)


def read_predictions(path: Path) -> dict[str, tuple[float | None, float | None]]:
    """(TTFT, TPOT) in seconds by run id, of a CSV file `id,ttft_ms,tpot_ms`; None = no answer.

    Raises ConfigError like `read_runs`.
    """
    rows = read_table(path, PREDICTION_COLUMNS)
    check_unique(rows, "id")
    return {row.name("id"): (row.seconds("ttft_ms"), row.seconds("tpot_ms")) for row in rows}


def spelling(run: Run) -> Spelling:
    """Whether the degrees of `run` are counted twice, and how."""
    if run.tp == 1 and run.moe_tp == run.moe_ep > 1 and run.attention_dp == run.moe_ep**2:
        return Spelling.DATA_PARALLEL_TWICE
    if run.moe_tp == 1 and run.tp == run.attention_dp > 1 and run.moe_ep == run.tp**2:
        return Spelling.TENSOR_PARALLEL_TWICE
    return Spelling.PLAIN


def read_degrees(run: Run) -> tuple[int, int, int, int]:
    """(tp, dp, moe_tp, moe_ep) that `run` was measured under, double counting undone."""
    match spelling(run):
        case Spelling.DATA_PARALLEL_TWICE:
            return 1, run.moe_ep, 1, run.moe_ep
        case Spelling.TENSOR_PARALLEL_TWICE:
            return run.tp, 1, 1, run.tp
        case Spelling.PLAIN:
            return run.tp, run.attention_dp, run.moe_tp, run.moe_ep


def normalised(run: Run) -> Run:
    """`run` with its degrees as read. Its `devices` then count GPUs in use, not those written."""
    tp, dp, moe_tp, moe_ep = read_degrees(run)
    return replace(run, tp=tp, attention_dp=dp, moe_tp=moe_tp, moe_ep=moe_ep)


def count_spellings(runs: Iterable[Run]) -> dict[Spelling, int]:
    """How many runs count their degrees in which way."""
    found = Counter(spelling(run) for run in runs)
    return {kind: found[kind] for kind in Spelling}


def _run(row: Row) -> Run:
    return Run(
        id=row.name("id"),
        model=row.text("model"),
        config=row.name("config"),
        system=row.name("system"),
        backend=row.name("backend"),
        backend_version=row.text("backend_version"),
        precision=row.text("precision"),
        gemm_quant=row.text("gemm_quant"),
        moe_quant=row.text("moe_quant"),
        isl=row.whole("isl"),
        osl=row.whole("osl"),
        concurrency=row.whole("concurrency"),
        tp=row.whole("tp"),
        pp=row.whole("pp"),
        attention_dp=row.whole("attention_dp"),
        moe_tp=row.whole("moe_tp"),
        moe_ep=row.whole("moe_ep"),
        ttft_s=row.seconds("ttft_ms"),
        tpot_s=row.seconds("tpot_ms"),
    )
