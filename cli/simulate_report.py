"""What does `simulate` print? The question, latencies, figures, decisions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from autoscaler.reasons import Action
from autoscaler.snapshot import Decision, Tier
from cli.console import milliseconds, table
from cli.simulate_inputs import Case
from cli.simulate_run import Run
from cli.simulate_traffic import Traffic
from cluster.model.plan import PoolSection
from cluster.sim.setup import PoolSetup
from cluster.sim.task import Spread, Summary
from cluster.traces.describe import TraceSummary

MOST_DECISIONS = 10


def span(seconds: float) -> str:
    """`58.4 min` for people."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.3g} s"


def print_trace(console: Console, traffic: Traffic, found: TraceSummary) -> None:
    """One line of what was sent, one of what was left out."""
    prompt, output, trace = found.prompt, found.output, traffic.trace
    reused = found.reused_blocks
    console.print(
        f"trace {trace.name} ({trace.format}): {found.requests:,} requests in "
        f"{span(found.duration_s)}, {found.rate:.3g}/s (busiest 10 s: {found.peak_rate:.3g}/s, CV "
        f"of gaps {found.gap_cv:.2f}); prompts {prompt.mean:,.0f} tokens (p99 {prompt.p99:,.0f}), "
        f"outputs {output.mean:,.0f} (p99 {output.p99:,.0f})"
        + ("" if reused is None else f"; {reused:.1%} of prompt blocks seen before"),
        markup=False,
    )
    for reason, number in trace.skipped.items():
        console.print(f"  left out: {number:,} rows, {reason}", markup=False)


def print_case(console: Console, case: Case) -> None:
    """The pools, who steers, what breaks."""
    sections: dict[str, PoolSection] = {pool.name: pool for pool in case.plan.pools}
    for pool in case.setup.pools:
        section = sections.get(pool.name, case.plan.main)
        layout = section.layout.to_layout(replicas=1)
        console.print(
            f"{case.label}, {pool.name}: {section.model.name}, {layout.describe()}, "
            f"{_replicas(pool, case)}, {pool.spec.max_num_seqs} sequences and "
            f"{pool.spec.chunk} tokens a step, KV cache of "
            f"{pool.spec.kv_blocks * pool.spec.block_tokens:,} tokens a rank, "
            f"{span(pool.spec.start_s)} to start",
            markup=False,
        )
    for name, what in (("is steered", _steered(case)), ("breaks:", _breaks(case))):
        if what:
            console.print(f"{case.label} {name} {what}", markup=False)
    for note in case.notes:
        console.print(f"{case.label}: note: {note}", markup=False)


def print_misfit(console: Console, case: Case, found: TraceSummary) -> None:
    """Say where requests may be longer than the engine is configured for."""
    longest, accepted = found.prompt.largest + found.output.largest, case.contexts["main"]
    if longest > accepted:
        console.print(
            f"{case.label}: note: prompts reach {found.prompt.largest:,} tokens and outputs "
            f"{found.output.largest:,}, the engine takes {accepted:,} together (max_model_len); "
            "longer ones are refused",
            markup=False,
        )


def print_run(console: Console, run: Run) -> None:
    """Latencies, figures and decisions."""
    summary = run.summary
    _print_latencies(console, summary)
    figures = table("", "", "")
    for name, value in _figures(run):
        figures.add_row(name, value)
    console.print(figures)
    if run.case.params is not None:
        _print_decisions(console, run.decisions)
    for missed in missed_failures(run):
        console.print(f"note: {missed}", markup=False)
    speed = summary.duration_s / run.wall_s if run.wall_s > 0.0 else 0.0
    console.print(
        f"\nsimulated {span(summary.duration_s)} in {run.wall_s:.2f} s, {speed:,.0f} times as "
        "fast as real time",
        markup=False,
    )


def missed_failures(run: Run) -> tuple[str, ...]:
    """Kinds of failures that found nothing to hit."""
    kinds = {failure.kind for failure in run.case.setup.failures}
    events = run.summary.events
    return tuple(
        f"no {kind} hit a replica: none of that number was there at that time"
        for kind in sorted(kinds)
        if not events.get(f"replicas hit: {kind}")
    )


def _replicas(pool: PoolSetup, case: Case) -> str:
    one = f"{pool.replicas} replica{'s' if pool.replicas != 1 else ''}"
    if case.params is None:
        return one
    bounds = case.params.pool(pool.name)
    return f"{one} at first, {bounds.minimum} to {bounds.maximum}"


def _steered(case: Case) -> str:
    params = case.params
    if params is None:
        return ""
    return (
        f"by the controller ({params.mode.value}): policy {params.scaling.policy}, forecast "
        f"{params.forecast.method}, a tick every {params.tick_s:g} s"
    )


def _breaks(case: Case) -> str:
    return ", ".join(
        f"{failure.kind} of {failure.pool}/{failure.number} at {failure.at_s:g} s"
        for failure in case.setup.failures
    )


def _print_latencies(console: Console, summary: Summary) -> None:
    made = table("latency, ms", "", "mean", "p50", "p90", "p95", "p99")
    for name, spread in (
        ("TTFT", summary.ttft_s),
        ("TPOT", summary.tpot_s),
        ("ITL", summary.itl_s),
        ("E2E", summary.e2e_s),
    ):
        made.add_row(name, *cells(spread))
    console.print()
    console.print(made)


def cells(spread: Spread) -> list[str]:
    """A row of a table of latencies."""
    values = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99)
    return [shown_ms(value) for value in values]


def shown_ms(seconds: float | None) -> str:
    """Milliseconds, or a dash where nothing was measured."""
    return "-" if seconds is None else milliseconds(seconds)


def _figures(run: Run) -> list[tuple[str, str]]:
    summary, slo = run.summary, run.case.setup.slo
    bounds = [
        f"{name} {milliseconds(bound)} ms"
        for name, bound in (("TTFT", slo.ttft_s), ("TPOT", slo.tpot_s))
        if bound is not None
    ]
    rows = [
        ("requests", f"{summary.arrived:,} came, {summary.completed:,} completed"),
        (
            f"within the SLO ({', '.join(bounds) or 'no bounds'})",
            f"{summary.attainment:.2%}, goodput {summary.goodput_rps:.3g}/s",
        ),
        ("output tokens/s", f"{summary.output_tokens_per_s:,.0f}"),
        ("device-hours", f"{summary.device_hours:,.2f}"),
        ("cost, USD", "no price" if summary.cost is None else f"{summary.cost:,.2f}"),
        ("prompt tokens from the prefix cache", f"{summary.cached_share:.1%}"),
        ("preemptions", f"{summary.preemptions:,}"),
    ]
    rows += [
        (f"ready replicas, {pool}", f"{count.mean:.2f} on average, {count.most} at most")
        for pool, count in summary.replicas.items()
    ]
    rows += [(name, f"{number:,}") for name, number in summary.events.items()]
    rows += [(f"refused: {name}", f"{number:,}") for name, number in summary.refused.items()]
    if summary.unfinished:
        rows.append(("unfinished", f"{summary.unfinished:,}"))
    return rows


def _print_decisions(console: Console, made: Sequence[tuple[float, Decision]]) -> None:
    if not made:
        console.print("\nthe controller changed nothing")
        return
    shown = table(f"{len(made)} decisions", "at", "what", "why")
    shown.columns[1].justify = shown.columns[2].justify = "left"
    for at_s, decision in made[:MOST_DECISIONS]:
        shown.add_row(f"{at_s:,.0f} s", _what(decision), decision.reason)
    console.print()
    console.print(shown)
    if len(made) > MOST_DECISIONS:
        console.print(f"… {len(made) - MOST_DECISIONS} more; --json and --decisions have all")


def _what(decision: Decision) -> str:
    if decision.action is Action.TIER:
        return f"tier {decision.value} ({Tier(decision.value).name.lower()})"
    return f"{decision.pool} to {decision.value} replicas"
