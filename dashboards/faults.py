"""What has gone wrong, who noticed, and how soon was it mended?"""

from __future__ import annotations

from dashboards.panels import Dashboard, Panel, Query, Section, stat
from dashboards.promql import own, rate, series, told, told_increase

_DECISIONS = "shardwise_decisions_total"
_EACH = "pool, action, reason"


def _mean(what: str) -> str:
    """Seconds by fault since the controller began; 0 before the first."""
    seconds = told(f"shardwise_fault_{what}_seconds_total")
    return f"{seconds} / clamp_min({told(f'shardwise_faults_{what}_total')}, 1)"


FAULTS = Dashboard(
    uid="shardwise-faults",
    title="Shardwise / Faults",
    says="Lost and frozen replicas, failing starts, leaks, and what requests felt of them.",
    sections=(
        Section(
            title="Now",
            panels=(
                stat(
                    "Starts held",
                    "Pools that ask for no more than answer, because starts fail.",
                    Query(expr=f"sum({told('shardwise_starts_held')})", legend="pools"),
                    alarm=1,
                ),
                stat(
                    "No room",
                    "Pools with a replica that no node has room for.",
                    Query(expr=f"sum({told('shardwise_unmet_placement')})", legend="pools"),
                    alarm=1,
                ),
                stat(
                    "Faulty devices",
                    "Replicas with a device that its node calls faulty.",
                    Query(expr=f"sum({told('shardwise_faulty_replicas')})", legend="replicas"),
                    alarm=1,
                ),
                stat(
                    "Unseen nodes",
                    "Nodes whose memory or devices cannot be looked at.",
                    Query(expr=told("shardwise_unseen_nodes", "job", pooled=False), legend="nodes"),
                    alarm=1,
                ),
                stat(
                    "Controller in trouble",
                    "1: Serve does not answer it, or its log cannot be written.",
                    Query(
                        expr=told("shardwise_controller_trouble", "job", pooled=False),
                        legend="trouble",
                    ),
                    alarm=1,
                ),
                stat(
                    "Broken streams",
                    "Answers cut short in the time shown.",
                    Query(
                        expr="sum(increase("
                        + series("shardwise_broken_streams_total")
                        + "[$__range]))",
                        legend="streams",
                    ),
                    alarm=1,
                ),
            ),
        ),
        Section(
            title="Repairs",
            panels=(
                Panel(
                    title="Restarts by reason, in the time shown",
                    says="Ordered by the controller; docs/runbook.md explains each reason.",
                    queries=(
                        Query(
                            expr=told_increase(
                                _DECISIONS,
                                all_of=_EACH,
                                by="pool, reason",
                                where='action="restart"',
                            ),
                            legend="{{pool}} {{reason}}",
                        ),
                    ),
                ),
                Panel(
                    title="Restarts carried out",
                    says="Since the controller began.",
                    queries=(
                        Query(expr=told("shardwise_replica_restarts"), legend="{{pool}} faulty"),
                        Query(expr=told("shardwise_retired_replicas"), legend="{{pool}} leaking"),
                    ),
                ),
                Panel(
                    title="Until a fault is noticed",
                    says="Mean since the controller began: frozen, mute or stuck in a start.",
                    queries=(Query(expr=_mean("noticed"), legend="{{pool}}"),),
                    unit="s",
                ),
                Panel(
                    title="Until it is restored",
                    says="Mean since the controller began: from the restart until as many replicas "
                    "answer as are asked for.",
                    queries=(Query(expr=_mean("restored"), legend="{{pool}}"),),
                    unit="s",
                ),
            ),
        ),
        Section(
            title="What requests felt",
            panels=(
                Panel(
                    title="Retried, moved, taken up, broken",
                    says="Only the last is felt by callers.",
                    queries=(
                        Query(expr=rate("shardwise_retries_total"), legend="{{pool}} retried"),
                        Query(expr=rate("shardwise_moved_requests_total"), legend="{{pool}} moved"),
                        Query(
                            expr=rate("shardwise_resumed_streams_total"),
                            legend="{{pool}} taken up",
                        ),
                        Query(
                            expr=rate("shardwise_broken_streams_total"), legend="{{pool}} broken"
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="Canary tokens",
                    says="Asked of replicas that were silent: refused or lost ones precede a "
                    "restart.",
                    queries=(
                        Query(
                            expr=rate("shardwise_canary_total", "pool, outcome"),
                            legend="{{pool}} {{outcome}}",
                        ),
                    ),
                    unit="ops",
                ),
            ),
        ),
        Section(
            title="Starts and memory",
            panels=(
                Panel(
                    title="Starts held, and no room",
                    says="1 while starts fail and no more is asked for than answers.",
                    queries=(
                        Query(expr=told("shardwise_starts_held"), legend="{{pool}} held"),
                        Query(expr=told("shardwise_unmet_placement"), legend="{{pool}} no room"),
                    ),
                ),
                Panel(
                    title="Growth of host memory",
                    says="Bytes per second over half an hour: growth that lasts is a leak.",
                    queries=(
                        Query(
                            expr="max by (pool, replica) (deriv("
                            + series("shardwise_replica_host_bytes")
                            + "[30m]))",
                            legend="{{pool}} {{replica}}",
                        ),
                    ),
                    unit="bytes",
                ),
                Panel(
                    title="Left of replicas, and removed",
                    says="Since the controller began.",
                    queries=(
                        Query(
                            expr=told("shardwise_swept", "what", pooled=False), legend="{{what}}"
                        ),
                    ),
                ),
                Panel(
                    title="Replicas that may be chosen",
                    says="By gateway: they differ where one does not reach a replica.",
                    queries=(
                        Query(
                            expr=own("shardwise_ready_replicas", "pool, instance"),
                            legend="{{pool}} {{instance}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
