"""How the figures of `shardwise validate` look: tables for people, a JSON tree for programs.

Errors, shares and regrets are percentages in tables and fractions in JSON; a figure over nothing
is `-` or null. Invariant: nothing is decided or left out here; the JSON holds all that is printed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from cli.console import table
from cluster.calibration.evaluation import Evaluation
from cluster.calibration.metrics import QUANTITIES, Error, Noise
from cluster.calibration.runs import Spelling

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "tok/s/GPU"}
_REASONS = 10  # reasons printed; the JSON has every row's


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that one validation found; `same_rows` is (ours, peer's) where both answer."""

    rows: int
    measured: int
    provenance: str
    as_written: bool
    spellings: Mapping[Spelling, int]
    noise: Noise
    reasons: Mapping[str, str]
    ours: Evaluation
    peer: Evaluation | None
    same_rows: tuple[Evaluation, Evaluation] | None


def print_answers(console: Console, report: Report, *, runs_path: Path, out_path: Path) -> None:
    """What was read and how, what was answered, and why the rest was not."""
    console.print(
        f"{runs_path}: {report.rows} runs, {report.measured} with measured TTFT and TPOT; "
        f"{report.rows - len(report.reasons)} answered ({_percent(report.ours.coverage)} %)",
        markup=False,
    )
    console.print(f"provenance: {report.provenance}", markup=False)
    data, tensor = (
        report.spellings[Spelling.DATA_PARALLEL_TWICE],
        report.spellings[Spelling.TENSOR_PARALLEL_TWICE],
    )
    if data + tensor:
        how = (
            "taken as written (--degrees repaired undoes that)"
            if report.as_written
            else f"read as tp=1 dp=m moe_ep=m ({data}) and tp=m dp=1 moe_ep=m ({tensor}); "
            "--degrees as-written takes them literally"
        )
        console.print(f"degrees: {data + tensor} runs count theirs twice, {how}", markup=False)
    by_reason: dict[str, list[str]] = defaultdict(list)
    for run, reason in report.reasons.items():
        by_reason[reason].append(run)
    for reason, ids in sorted(by_reason.items(), key=lambda item: -len(item[1]))[:_REASONS]:
        shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
        console.print(f"no answer for {len(ids)} run(s): {reason} ({shown})", markup=False)
    if len(by_reason) > _REASONS:
        console.print(f"... and for {len(by_reason) - _REASONS} more reasons; --json has them all")
    console.print(f"predictions: {out_path}", markup=False)


def print_errors(console: Console, report: Report) -> None:
    """Errors overall and by group, ours; then ours beside the peer's on the same rows."""
    noise = report.noise
    if noise.repeated:
        differing = noise.repeated - noise.copies
        console.print(
            f"noise: {noise.repeated} configurations ran more than once, {noise.copies} of them "
            f"with identical values; the other {differing} spread by {_percent(noise.tpot_median)} "
            f"% in TPOT (p90 {_percent(noise.tpot_p90)}) and {_percent(noise.ttft_median)} % in "
            f"TTFT (p90 {_percent(noise.ttft_p90)})"
        )
    console.print()
    made = table(
        "|error| %: median, mean; bias is the median signed error",
        "",
        "runs",
        *(f"{_TITLES[name]} {figure}" for name in QUANTITIES for figure in ("med", "mean", "bias")),
    )
    for label, group in _groups(report.ours):
        made.add_row(
            label,
            str(group["throughput"].rows),
            *(cell for name in QUANTITIES for cell in _cells(group[name])),
        )
    console.print(made)
    if report.peer is None or report.same_rows is None:
        return
    ours, peer = report.same_rows
    console.print()
    made = table(
        f"median |error| % on the {ours.rows} runs that both answer "
        f"(the peer answers {_percent(report.peer.coverage)} % of all)",
        "",
        "runs",
        *(f"{_TITLES[name]} {who}" for name in QUANTITIES for who in ("ours", "peer")),
    )
    for (label, group), (_, other) in zip(_groups(ours), _groups(peer), strict=True):
        made.add_row(
            label,
            str(group["throughput"].rows),
            *(_percent(side[name].median) for name in QUANTITIES for side in (group, other)),
        )
    console.print(made)


def print_decisions(console: Console, report: Report) -> None:
    """What following the predictions would have led to, ours and the peer's."""
    columns = {"ours": report.ours}
    if report.same_rows is not None:
        columns |= {"ours, same runs": report.same_rows[0], "peer, same runs": report.same_rows[1]}
    for title, figures in (
        ("Layouts of a condition (same workload, system, backend, concurrency)", _RANKING),
        ("Picks within the median measured TPOT of a pool", _PICKS),
    ):
        console.print()
        made = table(title, "", *columns)
        for name, figure in figures.items():
            made.add_row(name, *(figure(evaluation) for evaluation in columns.values()))
        console.print(made)


def as_json(report: Report) -> Json:
    """The report as JSON values: fractions, seconds nowhere, null for a figure over nothing."""
    return _plain(asdict(report))


def _groups(evaluation: Evaluation) -> list[tuple[str, Mapping[str, Error]]]:
    return [
        (label, group) for groups in evaluation.errors.values() for label, group in groups.items()
    ]


def _cells(error: Error) -> tuple[str, str, str]:
    return _percent(error.median), _percent(error.mean), _percent(error.bias, signed=True)


def _plain(value: object) -> Json:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case tuple() | list():
            return [_plain(item) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is no part of a report")


def _percent(fraction: float, *, signed: bool = False) -> str:
    if not math.isfinite(fraction):
        return "-"
    return f"{fraction * 100:+.1f}" if signed else f"{fraction * 100:.1f}"


_RANKING: Mapping[str, Callable[[Evaluation], str]] = {
    "conditions with two layouts or more": lambda e: str(e.ranking.conditions),
    "  without an answer": lambda e: str(e.ranking.unanswered),
    "pairs of layouts": lambda e: str(e.ranking.pairs),
    "throughput ratio, median error %": lambda e: _percent(e.ranking.ratio_median),
    "throughput ratio, p90 error %": lambda e: _percent(e.ranking.ratio_p90),
    "Kendall tau, mean": lambda e: _tau(e.ranking.tau),
    "best layout found %": lambda e: _percent(e.ranking.hit_rate),
    "  by chance %": lambda e: _percent(e.ranking.chance),
    "throughput lost by the pick, mean %": lambda e: _percent(e.ranking.regret),
}
_PICKS: Mapping[str, Callable[[Evaluation], str]] = {
    "pools": lambda e: str(e.picks.pools),
    "nothing predicted within the bound": lambda e: str(e.picks.unanswered),
    "pick measured above the bound": lambda e: str(e.picks.breaking),
    "picks that keep it": lambda e: str(e.picks.kept),
    "  throughput lost, mean %": lambda e: _percent(e.picks.regret_mean),
    "  throughput lost, median %": lambda e: _percent(e.picks.regret_median),
}


def _tau(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
