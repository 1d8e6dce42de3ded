"""Is everything there, and what does it do? Replicas, traffic, engines, memory, gateways."""

from __future__ import annotations

from dashboards.panels import Dashboard, Panel, Query, Section, stat
from dashboards.promql import own, quantile, rate, share, told

_FAILED = 'status=~"5.."'

FLEET = Dashboard(
    uid="shardwise-fleet",
    title="Shardwise / Fleet",
    says="Replicas, traffic, engines, memory and gateways of one service.",
    sections=(
        Section(
            title="Now",
            panels=(
                stat(
                    "Ready replicas",
                    "Replicas that gateways may choose, of all pools.",
                    Query(expr=f"sum({told('shardwise_ready_replicas')})", legend="ready"),
                ),
                stat(
                    "Starting",
                    "Asked for and not answering yet.",
                    Query(expr=f"sum({told('shardwise_pending_replicas')})", legend="starting"),
                ),
                stat(
                    "Tier",
                    "Degradation in force: 0 none, 4 sheds load.",
                    Query(expr=told("shardwise_tier", "job", pooled=False), legend="tier"),
                    alarm=3,
                ),
                stat(
                    "Requests",
                    "Ended per second, whatever came of them.",
                    Query(
                        expr=f"sum({rate('shardwise_requests_total', pooled=False)})",
                        legend="requests",
                    ),
                    unit="reqps",
                ),
                stat(
                    "In line",
                    "Requests that wait for a replica.",
                    Query(expr=f"sum({own('shardwise_queued_requests')})", legend="waiting"),
                ),
                stat(
                    "Failing",
                    "Share of requests that ended with a status of 500 or above.",
                    Query(
                        expr=share(
                            rate("shardwise_requests_total", "job", _FAILED, pooled=False),
                            rate("shardwise_requests_total", "job", pooled=False),
                        ),
                        legend="failing",
                    ),
                    unit="percentunit",
                    alarm=0.01,
                ),
            ),
        ),
        Section(
            title="Traffic",
            panels=(
                Panel(
                    title="Requests by status",
                    says="499: the caller left. 429: refused for now. Pool `none` is left out by "
                    "the choice of a pool: ended before admission.",
                    queries=(
                        Query(
                            expr=rate("shardwise_requests_total", "status", pooled=False),
                            legend="{{status}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    title="Line",
                    says="Requests that wait, by pool, and how long the oldest has waited.",
                    queries=(
                        Query(expr=own("shardwise_queued_requests"), legend="{{pool}} requests"),
                        Query(
                            expr=told("shardwise_oldest_wait_seconds"),
                            legend="{{pool}} oldest, s",
                        ),
                    ),
                ),
                Panel(
                    title="Tokens in flight",
                    says="Predicted tokens that replicas hold for the gateways.",
                    queries=(Query(expr=own("shardwise_in_flight_tokens"), legend="{{pool}}"),),
                ),
                Panel(
                    title="Tokens per second",
                    says="What engines compute of prompts and make of answers.",
                    queries=tuple(
                        Query(
                            expr="sum by (pool) (max by (pool, replica) (rate("
                            f"shardwise_replica_{kind}_tokens_total"
                            '{job="$job", pool=~"$pool"}[$__rate_interval])))',
                            legend="{{pool}} " + kind,
                        )
                        for kind in ("prompt", "output")
                    ),
                ),
            ),
        ),
        Section(
            title="Replicas",
            panels=(
                Panel(
                    title="Replicas",
                    says="Ready below target for long: starts fail, or no node has room.",
                    queries=(
                        Query(expr=told("shardwise_ready_replicas"), legend="{{pool}} ready"),
                        Query(expr=told("shardwise_target_replicas"), legend="{{pool}} target"),
                        Query(expr=told("shardwise_maximum_replicas"), legend="{{pool}} maximum"),
                    ),
                ),
                Panel(
                    title="Sequences in batches, and waiting in engines",
                    says="Waiting inside an engine for long: its KV cache is full.",
                    queries=tuple(
                        Query(
                            expr=told(f"shardwise_replica_{what}", "pool, replica"),
                            legend="{{pool}} {{replica}} " + what,
                        )
                        for what in ("running", "waiting")
                    ),
                ),
                Panel(
                    title="KV cache in use",
                    says="Share of blocks, by replica.",
                    queries=(
                        Query(
                            expr=told("shardwise_replica_kv_usage_ratio", "pool, replica"),
                            legend="{{pool}} {{replica}}",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    title="Steps of engines per second",
                    says="0 while sequences run: the engine is frozen.",
                    queries=(
                        Query(
                            expr="max by (pool, replica) (rate(shardwise_replica_steps_total"
                            '{job="$job", pool=~"$pool"}[$__rate_interval]))',
                            legend="{{pool}} {{replica}}",
                        ),
                    ),
                ),
                Panel(
                    title="Memory of replicas",
                    says="Of all processes of a replica; device memory is unknown without NVML.",
                    queries=tuple(
                        Query(
                            expr=told(f"shardwise_replica_{kind}_bytes", "pool, replica"),
                            legend="{{pool}} {{replica}} " + kind,
                        )
                        for kind in ("host", "device")
                    ),
                    unit="bytes",
                ),
                Panel(
                    title="What the newest start took",
                    says="Until its weights were on the node, the engine, its warm-up.",
                    queries=(
                        Query(
                            expr=told("shardwise_replica_start_seconds", "pool, part"),
                            legend="{{pool}} {{part}}",
                        ),
                    ),
                    unit="s",
                ),
            ),
        ),
        Section(
            title="Gateways and controller",
            panels=(
                Panel(
                    title="Gateways that are scraped",
                    says="1: its last scrape succeeded.",
                    queries=(Query(expr='up{job="$job"}', legend="{{instance}}"),),
                ),
                Panel(
                    title="Controller",
                    says="How old its word is at each gateway, and how long ago it last stepped.",
                    queries=(
                        Query(
                            expr='shardwise_directive_age_seconds{job="$job"}',
                            legend="{{instance}} heard",
                        ),
                        Query(
                            expr=told("shardwise_tick_age_seconds", "job", pooled=False),
                            legend="stepped",
                        ),
                    ),
                    unit="s",
                    alarm=30,
                ),
                Panel(
                    title="Asyncio tasks of gateways",
                    says="As many as at rest whenever nobody asks, else something is left behind.",
                    queries=(Query(expr='shardwise_tasks{job="$job"}', legend="{{instance}}"),),
                ),
                Panel(
                    title="Long prompts, and tokens of API keys",
                    says="Prompts that did not fit, by what was done; tokens used by key.",
                    queries=(
                        Query(
                            expr=rate("shardwise_long_inputs_total", "policy", pooled=False),
                            legend="{{policy}} prompts/s",
                        ),
                        Query(
                            expr=rate(
                                "shardwise_long_input_cut_tokens_total", "policy", pooled=False
                            ),
                            legend="{{policy}} tokens cut/s",
                        ),
                        Query(
                            expr=rate("shardwise_key_tokens_total", "key, kind", pooled=False),
                            legend="{{key}} {{kind}} tokens/s",
                        ),
                    ),
                ),
                Panel(
                    title="Gap between two replies of a stream",
                    says="Half of them, and all but one in a hundred, are shorter.",
                    queries=tuple(
                        Query(
                            expr=quantile(at, "shardwise_itl_seconds"),
                            legend="{{pool}} " + f"p{at * 100:g}",
                        )
                        for at in (0.5, 0.99)
                    ),
                    unit="s",
                ),
                Panel(
                    title="Stream events per second",
                    says="Sent to callers.",
                    queries=(Query(expr=rate("shardwise_output_chunks_total"), legend="{{pool}}"),),
                ),
            ),
        ),
    ),
)
