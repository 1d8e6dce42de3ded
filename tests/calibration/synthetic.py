"""Serving runs that the cost model itself made: what a fit should find is then known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from cluster.calibration.fit import Stage
from cluster.calibration.models import models_of
from cluster.calibration.predict import predict
from cluster.calibration.runs import COLUMNS, Run
from cluster.costmodel.calibration_file import operator_coefficients
from cluster.costmodel.coefficients import Coefficients
from tests.calibration.samples import run

LLAMA = "meta-llama--Meta-Llama-3.1-8B"
QWEN = "Qwen--Qwen3-8B"
FIND = models_of(None)
BASE = operator_coefficients()
BRIEF = (
    Stage(tpot=0.30, ttft=0.50, iterations=4),
    Stage(tpot=0.10, ttft=0.20, iterations=3),
    Stage(tpot=0.05, ttft=0.12, iterations=3),
)
ONCE = (Stage(tpot=0.10, ttft=0.20, iterations=1),)


def grid(
    *,
    concurrencies: Sequence[int] = (1, 4, 16, 64),
    tps: Sequence[int] = (1, 2, 4),
    **changes: object,
) -> list[Run]:
    """Unmeasured runs of Llama-3.1-8B on H100s: four workloads each at every tp."""
    stored = {"config": LLAMA, "precision": "", "gemm_quant": "", "moe_quant": ""}
    made = {**stored, "backend_version": "1.0", **changes}
    return [
        run(
            id="-".join(
                str(part)
                for part in (
                    made["config"],
                    made.get("system", ""),
                    made["backend_version"],
                    c,
                    i,
                    o,
                    t,
                )
            ),
            concurrency=c,
            isl=i,
            osl=o,
            tp=t,
            moe_tp=t,
            **made,
        )
        for c, i, o, t in product(concurrencies, (500, 2000), (250, 1000), tps)
    ]


def scaled(factors: Mapping[str, float]) -> Coefficients:
    """The operator tables with some coefficients times a factor."""
    return BASE.updated({name: BASE.value(name) * by for name, by in factors.items()}, source="set")


def as_measured(runs: Sequence[Run], truth: Coefficients = BASE) -> list[Run]:
    """`runs` with the times that `truth` gives them."""
    ttft, tpot = predict(runs, FIND, coefficients=truth)
    return [
        replace(each, ttft_s=float(a), tpot_s=float(b))
        for each, a, b in zip(runs, ttft, tpot, strict=True)
    ]


def spoilt(runs: Sequence[Run], *, share: float, seed: int = 0) -> list[Run]:
    """`runs` with a share of them measured wrongly, by factors of 3 to 30 either way."""
    random = np.random.default_rng(seed)
    bad = set(random.choice(len(runs), size=round(share * len(runs)), replace=False).tolist())

    def wrong(seconds: float | None) -> float:
        return float(seconds or 1.0) * float(10.0 ** random.uniform(0.5, 1.5)) ** random.choice(
            [-1, 1]
        )

    return [
        replace(each, ttft_s=wrong(each.ttft_s), tpot_s=wrong(each.tpot_s))
        if index in bad
        else each
        for index, each in enumerate(runs)
    ]


def as_csv(runs: Sequence[Run]) -> str:
    """A runs file, times in milliseconds."""

    def cell(each: Run, column: str) -> str:
        if column not in ("ttft_ms", "tpot_ms"):
            return str(getattr(each, column))
        seconds = each.ttft_s if column == "ttft_ms" else each.tpot_s
        return "" if seconds is None else repr(seconds * 1e3)

    lines = [",".join(COLUMNS)]
    lines += [",".join(cell(each, column) for column in COLUMNS) for each in runs]
    return "\n".join(lines) + "\n"
