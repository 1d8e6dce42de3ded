"""Runs as arrays: what was measured, what is grouped with what, and output tokens/s/GPU.

In a closed loop with C requests in flight, Little's law gives the rate of output tokens as
C * osl / (TTFT + osl * TPOT), per GPU:

    throughput = C / (TPOT + TTFT / osl) / GPUs

Invariants: arrays are in the order of the runs; codes that are equal mean the same group; a time
that is not known, or could not be one (not finite, not positive), is NaN.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cluster.calibration.runs import Run, normalised

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

OVERALL = "all"
AS_STORED = "as stored"  # precision of a run that names none


@dataclass(frozen=True, kw_only=True)
class Times:
    """TTFT and TPOT of each run, shape (n,), seconds, NaN where there is none."""

    ttft_s: FloatArray
    tpot_s: FloatArray

    @property
    def known(self) -> BoolArray:
        """Which runs have both."""
        return np.asarray(np.isfinite(self.ttft_s) & np.isfinite(self.tpot_s), dtype=np.bool_)

    def take(self, rows: IntArray) -> Times:
        """The times of these rows, in their order."""
        return Times(ttft_s=self.ttft_s[rows], tpot_s=self.tpot_s[rows])


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What the metrics need of n runs. All arrays have shape (n,).

    `condition` is one workload on one system by one backend, whose layouts compete; `pool` is the
    same whatever the concurrency; `identity` is the whole configuration of a run. `labels` names
    the groups that errors are reported by.
    """

    measured: Times
    concurrency: FloatArray
    osl: FloatArray
    devices: FloatArray
    condition: IntArray
    pool: IntArray
    layout: IntArray
    identity: IntArray
    labels: Mapping[str, tuple[str, ...]]

    def throughput(self, times: Times) -> FloatArray:
        """Output tokens/s/GPU of each run at the given times; NaN where one is missing."""
        per_token_s = times.tpot_s + times.ttft_s / self.osl
        return np.asarray(self.concurrency / per_token_s / self.devices, dtype=np.float64)


def times(
    ttft_s: Iterable[float | None] | FloatArray, tpot_s: Iterable[float | None] | FloatArray
) -> Times:
    """Times of seconds, where None and what is not a positive finite number mean none."""
    return Times(ttft_s=_seconds(ttft_s), tpot_s=_seconds(tpot_s))


def columns_of(runs: Sequence[Run], *, as_written: bool = False) -> Columns:
    """The arrays of `runs`; `as_written` takes degrees literally (see cluster.calibration.runs).

    GPUs are those of the columns as written either way.
    """
    read = runs if as_written else [normalised(run) for run in runs]
    workloads = [
        (run.config, run.system, run.backend, run.precision, run.isl, run.osl) for run in runs
    ]
    layouts = [(run.tp, run.pp, run.attention_dp, run.moe_tp, run.moe_ep) for run in read]
    formats = [f"{run.backend} {run.precision or AS_STORED}" for run in runs]
    return Columns(
        measured=times([run.ttft_s for run in runs], [run.tpot_s for run in runs]),
        concurrency=np.array([run.concurrency for run in runs], dtype=np.float64),
        osl=np.array([run.osl for run in runs], dtype=np.float64),
        devices=np.array([float(run.devices) for run in runs], dtype=np.float64),
        condition=codes(
            [(*load, run.concurrency) for load, run in zip(workloads, runs, strict=True)]
        ),
        pool=codes(workloads),
        layout=codes(layouts),
        identity=codes([replace(run, id="", ttft_s=None, tpot_s=None) for run in runs]),
        labels={
            "overall": (OVERALL,) * len(runs),
            "system": tuple(run.system for run in runs),
            "model": tuple(run.config for run in runs),
            "backend": tuple(run.backend for run in runs),
            "backend x precision": tuple(formats),
        },
    )


def codes(keys: Sequence[Hashable]) -> IntArray:
    """A number per key, equal for equal keys, counted from 0 by first appearance."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.int64)


def members(group: IntArray) -> list[IntArray]:
    """Row numbers of each group, ascending within it, groups in the order of their codes."""
    if not group.size:
        return []
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return [np.asarray(part, dtype=np.int64) for part in np.split(order, starts)]


def _seconds(values: Iterable[float | None] | FloatArray) -> FloatArray:
    found = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(found) & (found > 0.0), found, np.nan)
