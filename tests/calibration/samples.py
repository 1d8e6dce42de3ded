"""Small run files of our own: the columns of the format, and rows by what differs."""

from __future__ import annotations

from dataclasses import replace

from cluster.calibration.runs import COLUMNS, Run

DEFAULTS = {
    "id": "a",
    "model": "openai/gpt-oss-20b",
    "config": "openai--gpt-oss-20b",
    "system": "h100_sxm",
    "backend": "vllm",
    "backend_version": "0.19.0",
    "precision": "fp8",
    "gemm_quant": "fp8",
    "moe_quant": "fp8",
    "isl": "1024",
    "osl": "512",
    "concurrency": "16",
    "tp": "2",
    "pp": "1",
    "attention_dp": "1",
    "moe_tp": "2",
    "moe_ep": "1",
    "ttft_ms": "120.5",
    "tpot_ms": "11.25",
}

RUN = Run(
    id="a",
    model="openai/gpt-oss-20b",
    config="openai--gpt-oss-20b",
    system="h100_sxm",
    backend="vllm",
    backend_version="0.19.0",
    precision="fp8",
    gemm_quant="fp8",
    moe_quant="fp8",
    isl=1024,
    osl=512,
    concurrency=16,
    tp=2,
    pp=1,
    attention_dp=1,
    moe_tp=2,
    moe_ep=1,
    ttft_s=0.1205,
    tpot_s=0.01125,
)


def run(**changes: object) -> Run:
    """The sample run with changes."""
    return replace(RUN, **changes)  # type: ignore[arg-type]


def csv_text(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS, end: str = "\n") -> str:
    """A runs file: each row is the sample row with changes."""
    lines = [",".join(columns)]
    lines += [",".join({**DEFAULTS, **row}[name] for name in columns) for row in rows]
    return end.join(lines) + end
