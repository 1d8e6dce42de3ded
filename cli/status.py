"""`shardwise status`: replicas, queue, tier, forecast, and the latest decisions with reasons."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from cli.console import count, out, table
from cli.replan_report import status_lines
from cli.status_nodes import show_nodes
from cluster.errors import UnavailableError
from serving.instance import Instance, Progress


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second.")] = False,
) -> None:
    """Show the running service."""
    instance = Instance.default()
    while True:
        progress = instance.progress()
        if progress is None or instance.head() is None:
            ended = f" (last: {progress.phase}, {progress.doing})" if progress else ""
            raise UnavailableError(f"no service is running here{ended}. Fix: `shardwise up`.")
        console = out()
        if progress.phase != "ready":
            console.print(f"{progress.phase}: {progress.doing}", markup=False)
        else:
            _show(fetch(progress), progress, console=console, as_json=as_json)
        if not watch:
            return
        time.sleep(1.0)


def fetch(progress: Progress) -> dict[str, Any]:
    """The controller's account, through the gateway. Raises UnavailableError."""
    url = progress.endpoint.removesuffix("/v1") + "/status"
    try:
        response = httpx.get(url, timeout=10.0, trust_env=False)
        response.raise_for_status()
        data: dict[str, Any] = response.json()
    except (httpx.HTTPError, ValueError) as error:
        raise UnavailableError(
            f"{url} does not answer: {error}. The service may be restarting its gateway."
        ) from error
    return data


def _show(status: dict[str, Any], progress: Progress, *, console: Console, as_json: bool) -> None:
    if as_json:
        console.print_json(json.dumps({"endpoint": progress.endpoint, **status}))
        return
    saturation = status["saturation"]
    console.print(f"endpoint    {progress.endpoint}")
    console.print(
        f"tier        {status['tier']} ({status['tier_name']}), saturation "
        f"{'unknown' if saturation is None else f'{saturation:.2f}'}, {status['mode']} mode"
    )
    if status["trouble"]:
        console.print(f"trouble     {status['trouble']}", markup=False)
    for pool in status["pools"]:
        if pool["trouble"]:
            console.print(f"{pool['pool']:11} {pool['trouble']}", markup=False)
    replan = status["replan"]
    _show_pools(status, console=console)
    for line in status_lines(replan, now_s=status["now_s"]) if replan else ():
        console.print(line, markup=False)
    replicas = table(
        "replicas",
        *("replica", "pool", "running", "waiting", "KV used", "host GiB", "device GiB", "pid"),
        *("up s", ""),
    )
    for replica in sorted(status["replicas"], key=lambda r: (r["pool"], r["replica_id"])):
        replicas.add_row(
            replica["replica_id"],
            replica["pool"],
            str(replica["running"]),
            str(replica["waiting"]),
            f"{replica['kv_usage']:.0%}",
            _gib(replica["host_bytes"]),
            _gib(replica["device_bytes"]),
            str(replica["pid"]),
            f"{status['now_s'] - replica['started_s']:.0f}",
            replica["device_fault"] or _left_out(replica["replica_id"], status),
        )
    console.print(replicas)
    show_nodes(status["nodes"], console=console)
    console.print("decisions")
    for decision in status["decisions"][-8:]:
        ago = status["now_s"] - decision["time_s"]
        whom = decision["subject"] or decision["value"]
        console.print(
            f"  {ago:5.0f} s ago  {decision['action']:7} {decision['pool']} → "
            f"{whom}: {decision['reason']} ({decision['kind']})",
            markup=False,
        )
    if not status["decisions"]:
        console.print("  none yet")
    console.print(f"log         {status['log']}", markup=False)


def _show_pools(status: dict[str, Any], *, console: Console) -> None:
    pools = table(
        "pools",
        *("pool", "layout", "desired", "target", "ready", "pending", "bounds"),
        "measured/planned",
    )
    loads = table(
        "load",
        *("pool", "queued", "oldest wait s", "in flight tok", "arriving tok/s", "keeps busy"),
        *("forecast", "by"),
    )
    replan = status["replan"]
    for pool in status["pools"]:
        load = pool["load"] or {}
        pools.add_row(
            pool["pool"],
            replan["layouts"][pool["pool"]] if replan else "",
            *(_text(pool[name]) for name in ("desired", "target", "ready", "pending")),
            f"{pool['minimum']}-{pool['maximum']}",
            _text(pool["delivered"], places=2),
        )
        loads.add_row(
            pool["pool"],
            _text(load.get("queued_requests")),
            _text(load.get("oldest_wait_s")),
            _text(load.get("in_flight_tokens")),
            _text(load.get("arrival_tokens_per_s")),
            _text(load.get("arrival_work"), places=2),
            _text(pool["forecast"], places=2),
            pool["forecaster"] or "-",
        )
    console.print(pools)
    console.print(loads)


def _gib(amount: float | None) -> str:
    return "?" if amount is None else f"{amount / 2**30:.2f}"


def _left_out(replica_id: str, status: dict[str, Any]) -> str:
    return "gets nothing new" if replica_id in status["left_out"] else ""


def _text(value: float | None, *, places: int = 1) -> str:
    if value is None:
        return "?"
    if isinstance(value, int):
        return str(value)
    return count(value) if value >= 1000 else f"{value:.{places}f}"
