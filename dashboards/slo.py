"""Is the promise kept? Attainment, burn rate, and the latencies behind them."""

from __future__ import annotations

from dashboards.panels import Dashboard, Panel, Query, Section, Variable, stat
from dashboards.promql import quantile, rate, series, share, told

_REQUESTS = "shardwise_slo_requests_total"
_MISSED = 'verdict="missed"'


def _missed(period: str) -> str:
    """Share of requests that missed the SLO in a period; 0 where there were none."""
    part = f"sum by (pool) (rate({series(_REQUESTS, _MISSED)}[{period}]))"
    whole = f"sum by (pool) (rate({series(_REQUESTS)}[{period}]))"
    return share(part, whole)


def _latency(title: str, says: str, name: str, *, bound: str = "") -> Panel:
    queries = [
        Query(expr=quantile(at, name), legend="{{pool}} " + f"p{at * 100:g}")
        for at in (0.5, 0.95, 0.99)
    ]
    if bound:
        queries.append(Query(expr=told(bound), legend="{{pool}} bound"))
    return Panel(title=title, says=says, queries=tuple(queries), unit="s")


SLO = Dashboard(
    uid="shardwise-slo",
    title="Shardwise / SLO",
    says="Requests within the plan's bounds of TTFT and TPOT. Refused and failed ones are missed.",
    variables=(Variable(name="objective", label="Objective", default="0.99"),),
    sections=(
        Section(
            title="Now",
            panels=(
                stat(
                    "Attainment",
                    "Share of requests within the SLO over the time shown, of the worst pool.",
                    Query(
                        expr=f"1 - max({_missed('$__range')})",
                        legend="attainment",
                    ),
                    unit="percentunit",
                ),
                stat(
                    "Error budget used",
                    "Of what the objective allows over the time shown; above 100 %: missed.",
                    Query(
                        expr=f"max({_missed('$__range')}) / (1 - $objective)",
                        legend="used",
                    ),
                    unit="percentunit",
                    alarm=1,
                ),
                stat(
                    "Goodput",
                    "Requests per second within the SLO.",
                    Query(
                        expr=f"""sum({rate(_REQUESTS, where='verdict="met"')})""",
                        legend="goodput",
                    ),
                    unit="reqps",
                ),
                stat(
                    "Missed",
                    "Requests per second that missed it.",
                    Query(expr=f"sum({rate(_REQUESTS, where=_MISSED)})", legend="missed"),
                    unit="reqps",
                ),
            ),
        ),
        Section(
            title="Budget",
            panels=(
                Panel(
                    title="Burn rate",
                    says="1: the budget lasts exactly as long as the objective's period. 14.4 over "
                    "an hour uses two days' share of 30 in that hour, and pages.",
                    queries=tuple(
                        Query(
                            expr=f"({_missed(period)}) / (1 - $objective)",
                            legend="{{pool}} " + period,
                        )
                        for period in ("5m", "1h", "6h")
                    ),
                    alarm=14.4,
                ),
                Panel(
                    title="Requests by verdict",
                    says="Callers who left and their own mistakes are not counted.",
                    queries=(
                        Query(expr=rate(_REQUESTS, "pool, verdict"), legend="{{pool}} {{verdict}}"),
                    ),
                    unit="reqps",
                ),
            ),
        ),
        Section(
            title="Latency",
            panels=(
                _latency(
                    "TTFT",
                    "Arrival to first reply, waits in line included.",
                    "shardwise_ttft_seconds",
                    bound="shardwise_slo_ttft_seconds",
                ),
                _latency(
                    "TPOT",
                    "Time per output token after the first, by stream.",
                    "shardwise_tpot_seconds",
                    bound="shardwise_slo_tpot_seconds",
                ),
                _latency(
                    "TTFT without the line",
                    "From being placed on a replica to the first reply.",
                    "shardwise_engine_ttft_seconds",
                ),
                _latency("ITL", "Gaps between replies of a stream.", "shardwise_itl_seconds"),
            ),
        ),
        Section(
            title="Refused and changed",
            panels=(
                Panel(
                    title="Refused and failed",
                    says="429: the line is full or load is shed; 503: no replica; 504: too late.",
                    queries=(
                        Query(
                            expr=rate(
                                "shardwise_requests_total",
                                "status",
                                'status=~"429|5.."',
                                pooled=False,
                            ),
                            legend="{{status}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="Changed by a tier",
                    says="What was taken from answers, or refused, to keep up.",
                    queries=(
                        Query(
                            expr=rate("shardwise_degraded_total", "change", pooled=False),
                            legend="{{change}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="Requests by class",
                    says="By priority, whatever came of them.",
                    queries=(
                        Query(
                            expr=rate("shardwise_requests_total", "priority", pooled=False),
                            legend="{{priority}}",
                        ),
                    ),
                    unit="reqps",
                ),
            ),
        ),
    ),
)
