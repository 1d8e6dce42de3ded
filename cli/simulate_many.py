"""Which of several plans does best on this trace? Each simulated on Ray, then side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from cli.console import table
from cli.simulate_inputs import Case
from cli.simulate_report import shown_ms
from cli.simulate_run import interruptible
from cluster.errors import UnavailableError
from cluster.sim.task import SimTask, Summary
from cluster.traces.request import TraceRequest

Result = Summary | str


@dataclass(frozen=True, kw_only=True)
class _Column:
    """A figure of a run. `sign` +1: more is better, -1: less, 0: neither."""

    title: str
    value: Callable[[Summary], float | None]
    shown: Callable[[float], str]
    sign: int = 0


_COLUMNS = (
    _Column(title="TTFT p50 ms", value=lambda s: s.ttft_s.p50, shown=shown_ms, sign=-1),
    _Column(title="p99 ms", value=lambda s: s.ttft_s.p99, shown=shown_ms, sign=-1),
    _Column(title="TPOT p50 ms", value=lambda s: s.tpot_s.p50, shown=shown_ms, sign=-1),
    _Column(title="p99 ms", value=lambda s: s.tpot_s.p99, shown=shown_ms, sign=-1),
    _Column(title="in SLO", value=lambda s: s.attainment, shown="{:.2%}".format, sign=1),
    _Column(title="goodput/s", value=lambda s: s.goodput_rps, shown="{:.3g}".format, sign=1),
    _Column(title="tok/s", value=lambda s: s.output_tokens_per_s, shown="{:,.0f}".format, sign=1),
    _Column(title="device-h", value=lambda s: s.device_hours, shown="{:,.2f}".format, sign=-1),
    _Column(title="USD", value=lambda s: s.cost, shown="{:,.2f}".format, sign=-1),
    _Column(
        title="refused", value=lambda s: sum(s.refused.values()), shown="{:,.0f}".format, sign=-1
    ),
    _Column(title="preempted", value=lambda s: s.preemptions, shown="{:,.0f}".format, sign=-1),
    _Column(
        title="replicas",
        value=lambda s: sum(pool.mean for pool in s.replicas.values()),
        shown="{:.2f}".format,
    ),
)


def run_cases(
    cases: Sequence[Case],
    requests: Iterable[TraceRequest],
    *,
    seed: int,
    address: str | None,
) -> tuple[Result, ...]:
    """A summary of each case, or why there is none. Raises UnavailableError without Ray."""
    try:
        from cluster.ray_backend.measure import connected
        from cluster.ray_backend.sim_pool import SimPool, local_ray
    except ImportError as error:
        raise UnavailableError(
            f"several plans are simulated on Ray, which is not here ({error}). Fix: install "
            "shardwise[serve], or pass one --plan."
        ) from error
    tasks = [task_of(case, seed=seed) for case in cases]
    where = local_ray() if address is None else connected(address)
    with (
        interruptible(lambda: "interrupted before all plans were simulated; nothing is written."),
        where,
        SimPool(requests, actors=len(cases)) as pool,
    ):
        found = pool.map(tasks)
    return tuple(one if isinstance(one, Summary) else one.message for one in found)


def task_of(case: Case, *, seed: int) -> SimTask:
    """What travels to where it is simulated."""
    return SimTask(setup=case.setup, seed=seed, driver=case.steering)


def print_comparison(
    console: Console, cases: Sequence[Case], results: Sequence[Result], *, seconds: float
) -> None:
    """A row per plan, the best of each column marked."""
    made = table("* best of its column", "plan", "layout", *(c.title for c in _COLUMNS))
    made.columns[1].justify = "left"
    summaries = [result for result in results if isinstance(result, Summary)]
    best = [_best(column, summaries) for column in _COLUMNS]
    for case, result in zip(cases, results, strict=True):
        layout = case.plan.main.layout.to_layout(replicas=1).describe()
        if isinstance(result, Summary):
            made.add_row(case.label, layout, *_cells(result, best))
        else:
            made.add_row(case.label, layout, "failed", *["-"] * (len(_COLUMNS) - 1))
    console.print()
    console.print(made)
    for case, result in zip(cases, results, strict=True):
        if isinstance(result, str):
            console.print(f"{case.label}: {result}", markup=False)
    console.print(f"\nsimulated {len(cases)} plans in {seconds:.2f} s")


def _best(column: _Column, summaries: Sequence[Summary]) -> str | None:
    """What is to be marked, as it is shown; nothing where all look the same."""
    values = [value for s in summaries if (value := column.value(s)) is not None]
    if not column.sign or len({column.shown(value) for value in values}) < 2:
        return None
    return column.shown(max(values) if column.sign > 0 else min(values))


def _cells(summary: Summary, best: Sequence[str | None]) -> list[str]:
    found = []
    for column, mark in zip(_COLUMNS, best, strict=True):
        value = column.value(summary)
        text = "-" if value is None else column.shown(value)
        found.append(f"{text}*" if text == mark else text)
    return found
