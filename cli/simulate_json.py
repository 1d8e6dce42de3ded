"""What does `simulate` write as JSON? Inputs, trace, and for every plan its figures.

    {"version": 1, "inputs": {…}, "trace": {…}, "runs": [{"plan", "pools", "slo", "summary", …}]}

Seconds, tokens, hours, USD, as the names say. `inputs` are the options as given. A run that was
simulated here has `series` (equal windows), `decisions` and `wall_s` as well; one that failed has
`failed` in place of `summary`. Numbers that do not exist are null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cli.simulate_inputs import Case
from cli.simulate_run import Run
from cli.simulate_traffic import Traffic
from cluster.sim.histogram import Histogram
from cluster.sim.record import Series
from cluster.sim.task import Summary
from cluster.traces.describe import TraceSummary

VERSION = 1
Json = dict[str, Any]


def document(
    inputs: Mapping[str, object], traffic: Traffic, trace: TraceSummary, runs: list[Json]
) -> Json:
    """All of it."""
    return {
        "version": VERSION,
        "inputs": {name: _plain(value) for name, value in inputs.items() if value is not None},
        "trace": {
            "name": traffic.trace.name,
            "format": traffic.trace.format,
            "requests": trace.requests,
            "duration_s": trace.duration_s,
            "rate_per_s": trace.rate,
            "peak_rate_per_s": trace.peak_rate,
            "gap_cv": trace.gap_cv,
            "prompt_tokens": asdict(trace.prompt),
            "output_tokens": asdict(trace.output),
            "reused_blocks_share": trace.reused_blocks,
            "skipped_rows": dict(traffic.trace.skipped),
        },
        "runs": runs,
    }


def run_json(run: Run) -> Json:
    """A run with everything that was kept of it."""
    duration_s = run.summary.duration_s
    return {
        **summary_json(run.case, run.summary),
        "wall_s": run.wall_s,
        "times_real_time": duration_s / run.wall_s if run.wall_s > 0.0 else None,
        "decisions": [
            {
                "at_s": at_s,
                "action": decision.action.value,
                "pool": decision.pool,
                "value": decision.value,
                "reason": decision.reason,
                "numbers": {name: _finite(value) for name, value in decision.numbers},
            }
            for at_s, decision in run.decisions
        ],
        "series": _series(run.outcome.record.series),
    }


def summary_json(case: Case, summary: Summary) -> Json:
    """A run of which only the summary is known."""
    figures = summary.to_json()
    figures["cost_usd"] = figures.pop("cost")
    return {**case_json(case), "summary": figures}


def failed_json(case: Case, message: str) -> Json:
    """A run that came to no end."""
    return {**case_json(case), "failed": message}


def case_json(case: Case) -> Json:
    """What was simulated."""
    setup = case.setup
    return {
        "plan": str(case.path),
        "model": case.plan.main.model.name,
        "layout": case.plan.main.layout.to_layout(replicas=1).describe(),
        "slo": {"ttft_s": setup.slo.ttft_s, "tpot_s": setup.slo.tpot_s},
        "pools": [
            {
                "name": pool.name,
                "role": pool.spec.role.value,
                "initial_replicas": pool.replicas,
                "devices_per_replica": pool.spec.devices,
                "max_num_seqs_per_rank": pool.spec.max_num_seqs,
                "tokens_per_step": pool.spec.chunk,
                "kv_tokens_per_rank": pool.spec.kv_blocks * pool.spec.block_tokens,
                "start_s": pool.spec.start_s,
                "usd_per_device_hour": pool.price_per_device_hour,
            }
            for pool in setup.pools
        ],
        "failures": [
            {
                "kind": failure.kind.value,
                "at_s": failure.at_s,
                "target": f"{failure.pool}/{failure.number}",
                "for_s": _finite(failure.for_s),
                "factor": failure.factor,
            }
            for failure in setup.failures
        ],
    }


def _series(series: Series) -> Json:
    return {
        "window_s": series.width_s,
        "windows": [
            {
                "start_s": index * series.width_s,
                "arrived": window.arrived,
                "completed": window.completed,
                "attained": window.attained,
                "missed": window.missed,
                "prompt_tokens": window.prompt_tokens,
                "output_tokens": window.output_tokens,
                "ttft_s": _quantiles(window.ttft),
                "tpot_s": _quantiles(window.tpot),
                "gauges": {name: _finite(value) for name, value in window.gauges.items()},
            }
            for index, window in enumerate(series.windows)
        ],
    }


def _quantiles(histogram: Histogram) -> Json:
    return {
        "mean": _finite(histogram.mean),
        "p50": _finite(histogram.quantile(0.5)),
        "p99": _finite(histogram.quantile(0.99)),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
