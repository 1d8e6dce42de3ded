"""Why are there so many replicas? Load and forecast, sizes, decisions, tiers."""

from __future__ import annotations

from dashboards.panels import Dashboard, Panel, Query, Section, Variable
from dashboards.promql import own, rate, series, told, told_increase, told_rate

_DECISIONS = "shardwise_decisions_total"
_EACH = "pool, action, reason"

STEERING = Dashboard(
    uid="shardwise-autoscaler",
    title="Shardwise / Autoscaler",
    says="What the controller sees, expects and decides. Reasons are explained in docs/runbook.md.",
    variables=(Variable(name="horizon", label="Horizon (steering.cold_start_s)", default="1m"),),
    sections=(
        Section(
            title="Demand",
            panels=(
                Panel(
                    title="Load, and what was forecast for now",
                    says="In replicas that arrivals keep busy. A forecast is shown at the time it "
                    "was made for, a horizon later: both lines together are a good forecast.",
                    queries=(
                        Query(expr=told("shardwise_load_replicas"), legend="{{pool}} actual"),
                        Query(
                            expr=told("shardwise_forecast_load_replicas", offset="$horizon"),
                            legend="{{pool}} forecast",
                        ),
                        Query(
                            expr=told("shardwise_forecast_load_replicas"),
                            legend="{{pool}} expected a horizon from now",
                        ),
                    ),
                ),
                Panel(
                    title="Error of the forecast",
                    says="Forecast minus actual, in replicas: below 0 too few were expected.",
                    queries=(
                        Query(
                            expr=told("shardwise_forecast_load_replicas", offset="$horizon")
                            + " - "
                            + told("shardwise_load_replicas"),
                            legend="{{pool}}",
                        ),
                    ),
                ),
                Panel(
                    title="Work that arrives",
                    says="Engine-seconds per second by the plan's prices, as gateways count it.",
                    queries=(Query(expr=own("shardwise_arriving_work"), legend="{{pool}}"),),
                ),
                Panel(
                    title="Saturation and tier",
                    says="1: full. A tier is entered where no more replicas can come.",
                    queries=(
                        Query(
                            expr=told("shardwise_saturation_ratio", "job", pooled=False),
                            legend="saturation",
                        ),
                        Query(expr=told("shardwise_tier", "job", pooled=False), legend="tier"),
                    ),
                ),
            ),
        ),
        Section(
            title="Supply",
            panels=(
                Panel(
                    title="Desired, target, ready",
                    says="What the load wants, what Serve was asked for, what answers.",
                    queries=(
                        Query(expr=told("shardwise_desired_replicas"), legend="{{pool}} desired"),
                        Query(expr=told("shardwise_target_replicas"), legend="{{pool}} target"),
                        Query(expr=told("shardwise_ready_replicas"), legend="{{pool}} ready"),
                    ),
                ),
                Panel(
                    title="Bounds",
                    says="Desired at the maximum for long: the pool is too small for its load.",
                    queries=(
                        Query(expr=told("shardwise_minimum_replicas"), legend="{{pool}} minimum"),
                        Query(expr=told("shardwise_desired_replicas"), legend="{{pool}} desired"),
                        Query(expr=told("shardwise_maximum_replicas"), legend="{{pool}} maximum"),
                    ),
                ),
                Panel(
                    title="Starting",
                    says="How many, and how long the oldest start has taken.",
                    queries=(
                        Query(expr=told("shardwise_pending_replicas"), legend="{{pool}} replicas"),
                        Query(
                            expr=told("shardwise_oldest_start_seconds"),
                            legend="{{pool}} oldest, s",
                        ),
                    ),
                ),
                Panel(
                    title="Changed by a tier",
                    says="Requests per second.",
                    queries=(
                        Query(
                            expr=rate("shardwise_degraded_total", "change", pooled=False),
                            legend="{{change}}",
                        ),
                    ),
                    unit="reqps",
                ),
            ),
        ),
        Section(
            title="Decisions",
            panels=(
                Panel(
                    title="Decisions by action, per second",
                    says="Advice included. HOLD: nothing is changed although something would be.",
                    queries=(
                        Query(
                            expr=told_rate(_DECISIONS, all_of=_EACH, by="action"),
                            legend="{{action}}",
                        ),
                    ),
                    unit="ops",
                ),
                Panel(
                    title="Decisions by reason, in the time shown",
                    says="docs/runbook.md has a section for each reason.",
                    queries=(
                        Query(
                            expr=f"sort_desc({told_increase(_DECISIONS, all_of=_EACH, by=_EACH)})",
                            legend="",
                        ),
                    ),
                    drawn="table",
                ),
                Panel(
                    title="Restarts of the controller",
                    says="Its memory begins anew: delays, tier, history of the load.",
                    queries=(
                        Query(
                            expr="max(changes("
                            + series("shardwise_controller_start_time_seconds", pooled=False)
                            + "[$__range]))",
                            legend="restarts",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
