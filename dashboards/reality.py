"""Is it as planned? What the plan predicts beside what is measured, and what has drifted."""

from __future__ import annotations

from dashboards.panels import Dashboard, Panel, Query, Section
from dashboards.promql import quantile, rate, share, told


def _beside(title: str, says: str, *, what: str, measured: str) -> Panel:
    return Panel(
        title=title,
        says=says,
        queries=(
            Query(expr=told(f"shardwise_plan_{what}_seconds"), legend="{{pool}} predicted"),
            Query(expr=told(f"shardwise_seen_{what}_seconds"), legend="{{pool}} measured, mean"),
            Query(expr=quantile(0.5, measured), legend="{{pool}} measured, p50"),
            Query(expr=quantile(0.95, measured), legend="{{pool}} measured, p95"),
        ),
        unit="s",
    )


def _ratio(what: str) -> str:
    return f"{told(f'shardwise_seen_{what}_seconds')} / {told(f'shardwise_plan_{what}_seconds')}"


REALITY = Dashboard(
    uid="shardwise-plan-vs-reality",
    title="Shardwise / Plan and reality",
    says="What the plan in force predicts beside what is measured. Predictions hold at the plan's "
    "load: below it, measured times are shorter.",
    sections=(
        Section(
            title="Latency",
            panels=(
                _beside(
                    "TTFT",
                    "Without the wait in line.",
                    what="ttft",
                    measured="shardwise_engine_ttft_seconds",
                ),
                _beside(
                    "TPOT",
                    "Time per output token after the first.",
                    what="tpot",
                    measured="shardwise_tpot_seconds",
                ),
                Panel(
                    title="Measured over predicted",
                    says="1: as predicted.",
                    queries=(
                        Query(expr=_ratio("ttft"), legend="TTFT"),
                        Query(expr=_ratio("tpot"), legend="TPOT"),
                    ),
                ),
                Panel(
                    title="Speed of replicas over planned",
                    says="What scaling corrects by: work done in the time replicas were busy.",
                    queries=(Query(expr=told("shardwise_delivered_ratio"), legend="{{pool}}"),),
                ),
            ),
        ),
        Section(
            title="Workload",
            panels=(
                Panel(
                    title="Drift",
                    says="Seen over planned. Outside the band for steering.replan.hold_s a new "
                    "layout is searched for.",
                    queries=(
                        Query(
                            expr=told("shardwise_drift_ratio", "quantity"), legend="{{quantity}}"
                        ),
                        Query(
                            expr=told("shardwise_drift_band_ratio", "job", pooled=False),
                            legend="band",
                        ),
                        Query(
                            expr="1 / " + told("shardwise_drift_band_ratio", "job", pooled=False),
                            legend="1 / band",
                        ),
                    ),
                ),
                Panel(
                    title="Output tokens over predicted",
                    says="Of finished answers: the bias of the load that requests are placed by.",
                    queries=(
                        Query(
                            expr=share(
                                rate("shardwise_output_tokens_total"),
                                rate("shardwise_predicted_output_tokens_total"),
                            ),
                            legend="{{pool}} in all",
                        ),
                        Query(
                            expr=quantile(0.5, "shardwise_output_ratio"),
                            legend="{{pool}} by request, p50",
                        ),
                        Query(
                            expr=quantile(0.95, "shardwise_output_ratio"),
                            legend="{{pool}} by request, p95",
                        ),
                    ),
                ),
                Panel(
                    title="Moves to another layout",
                    says="1 while one is under way; below, how many have ended since the "
                    "controller began.",
                    queries=(
                        Query(expr=told("shardwise_moving"), legend="{{pool}} moving"),
                        Query(
                            expr=told("shardwise_moves_total", "outcome", pooled=False),
                            legend="{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    title="Proposals of a new layout",
                    says="Times that drift has lasted, in the time shown.",
                    queries=(
                        Query(
                            expr="sum by (pool) (max by (pool, reason) (increase("
                            'shardwise_decisions_total{job="$job", pool=~"$pool", '
                            'action="replan"}[$__range])))',
                            legend="{{pool}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
