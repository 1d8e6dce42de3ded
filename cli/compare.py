"""`shardwise compare`: on which hardware should this model run, and what would it cost?

Plans the same question on every `--cluster` and prints the answers side by side: the best layout
of each with its latency, throughput and cost, and for a rate the devices and USD per hour. A
cluster on which nothing fits is a row with its nearest miss.
Exit code 0: at least one cluster has a layout. 2: bad input. 3: none has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cli.compare_plots import write_comparison
from cli.console import milliseconds, out, resolve_cluster, table
from cli.plots import check_ending
from cli.question_options import (
    IslOption,
    ModelOption,
    OslOption,
    PriorityOption,
    SpaceOption,
    TpotOption,
    TtftOption,
    slo_of,
)
from cluster.errors import InfeasibleError, InputError
from cluster.model.catalogue import get_model
from cluster.model.prices import NO_PRICES, PriceList, read_prices
from cluster.model.workload import Workload
from rl_search.compare import Outcome, cheapest, cheapest_for_rate, compare, fastest
from rl_search.enumeration import Space
from rl_search.question import Priority
from rl_search.request import PlanRequest


def command(
    *,
    model: ModelOption,
    cluster: Annotated[
        list[str], typer.Option(help="`4x8xH200`, `8xH100` or a cluster file; repeat it.")
    ],
    isl: IslOption,
    osl: OslOption,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s expected; adds devices and USD per hour.")
    ] = None,
    priority: PriorityOption = Priority.BALANCED,
    space: SpaceOption = Space.VLLM,
    prices: Annotated[
        Path | None, typer.Option(help="YAML file: device name to USD per device and hour.")
    ] = None,
    plot: Annotated[
        list[Path] | None, typer.Option(help="Frontiers and costs as .png or .html; repeat it.")
    ] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """Plan a model on several clusters and compare what each would give and cost."""
    for target in plot or ():  # before searches that may take long
        check_ending(target)
    specs = [resolve_cluster(text) for text in cluster]
    listed = NO_PRICES if prices is None else read_prices(prices, clusters=specs)
    spec = get_model(model)
    slo = slo_of(ttft, tpot)
    outcomes = compare(
        [
            PlanRequest(
                model=spec,
                cluster=listed.apply(each),
                cluster_text=text,
                workload=Workload(isl=isl, osl=osl, rate=rate),
                slo=slo,
                priority=priority,
                space=space,
                source=model,
            )
            for text, each in zip(cluster, specs, strict=True)
        ]
    )
    title = f"{spec.name}, {isl} in / {osl} out, best by {priority.value}"
    console = out()
    _print(console, outcomes, listed, title=title)
    if json_ is not None:
        _write_json(outcomes, listed, json_)
    for target in plot or ():
        write_comparison(outcomes, target, title=title)
    written = [str(path) for path in (json_, *(plot or ())) if path is not None]
    if written:
        console.print(f"written: {', '.join(written)}")
    if all(outcome.result is None for outcome in outcomes):
        raise InfeasibleError(
            f"no layout of {spec.name} fits any of the {len(outcomes)} cluster(s); the reason of "
            "each is above. Fix: loosen the bounds, or name larger clusters."
        )


def _print(
    console: Console, outcomes: tuple[Outcome, ...], prices: PriceList, *, title: str
) -> None:
    rate = outcomes[0].request.workload.rate
    columns = ["layout", "seqs", "chunk", "TTFT ms", "TPOT ms", "tok/s/dev", "tok/s/user", "$/Mtok"]
    if rate is not None:
        columns += [f"devices for {rate:g}/s", "$/h"]
    made = table(title, "cluster", *columns)
    for outcome in outcomes:
        made.add_row(outcome.name, *_cells(outcome))
    console.print(made)
    console.print()
    for outcome in outcomes:
        if outcome.result is None:
            console.print(f"{outcome.name}: {outcome.reason}", markup=False)
    said = []
    for device in (group.device for o in outcomes for group in o.request.cluster.groups):
        price = "" if device.price_per_hour is None else f"${device.price_per_hour:g}/h, "
        said.append(f"price of {device.name}: {price}{prices.source_of(device)}")
    for line in dict.fromkeys(said):
        console.print(line, markup=False)
    _print_winners(console, outcomes)


def _print_winners(console: Console, outcomes: tuple[Outcome, ...]) -> None:
    named = (
        ("least cost per token", cheapest(outcomes)),
        ("fastest for a user", fastest(outcomes)),
        ("least cost for the rate", cheapest_for_rate(outcomes)),
    )
    for what, outcome in named:
        if outcome is not None:
            console.print(f"{what}: {outcome.name}", markup=False)
    for outcome in outcomes:
        need = outcome.need()
        if need is not None and not need.enough and outcome.result is not None:
            console.print(
                f"{outcome.name}: {need.replicas:,} replicas are needed for the rate, "
                f"{outcome.result.plan.main.replicas.maximum} fit",
                markup=False,
            )
    best = next((outcome.best for outcome in outcomes if outcome.best is not None), None)
    if best is not None:
        console.print(f"estimates: {best.estimates.provenance}", markup=False)


def _cells(outcome: Outcome) -> list[str]:
    row = outcome.best
    wide = outcome.request.workload.rate is not None
    if row is None:
        return ["no layout fits", *["-"] * (9 if wide else 7)]
    made, index, cost = row.estimates, row.index, outcome.usd_per_million_tokens
    cells = [
        row.layout.describe(),
        f"{row.layout.max_num_seqs}",
        f"{row.layout.max_num_batched_tokens}",
        milliseconds(float(made.ttft_s[index])),
        milliseconds(float(made.tpot_s[index])),
        f"{made.tokens_per_s_per_device[index]:,.1f}",
        f"{made.tokens_per_s_per_user[index]:,.1f}",
        "-" if cost is None else f"{cost:.3f}",
    ]
    if not wide:
        return cells
    need = outcome.need()
    if need is None:
        return [*cells, "-", "-"]
    usd = "-" if need.usd_per_hour is None else f"{need.usd_per_hour:,.2f}"
    return [*cells, f"{need.devices:,}" + ("" if need.enough else " (too many)"), usd]


def _figures(outcome: Outcome, prices: PriceList) -> dict[str, object]:
    row = outcome.best
    if row is None or outcome.result is None:
        return {"cluster": outcome.name, "feasible": False, "reason": outcome.reason}
    made, index, need, device = row.estimates, row.index, outcome.need(), row.group.device
    points = outcome.result.frontier
    return {
        "cluster": outcome.name,
        "feasible": True,
        "device": device.name,
        "usd_per_device_hour": device.price_per_hour,
        "price_source": prices.source_of(device),
        "layout": row.layout.describe(),
        "devices_per_replica": row.layout.devices_per_replica,
        "max_num_seqs": row.layout.max_num_seqs,
        "max_num_batched_tokens": row.layout.max_num_batched_tokens,
        "ttft_s": float(made.ttft_s[index]),
        "tpot_s": float(made.tpot_s[index]),
        "tokens_per_s_per_device": float(made.tokens_per_s_per_device[index]),
        "tokens_per_s_per_user": float(made.tokens_per_s_per_user[index]),
        "usd_per_million_output_tokens": outcome.usd_per_million_tokens,
        "replicas_for_rate": None if need is None else need.replicas,
        "devices_for_rate": None if need is None else need.devices,
        "usd_per_hour_for_rate": None if need is None else need.usd_per_hour,
        "cluster_serves_rate": None if need is None else need.enough,
        "frontier": {
            "tokens_per_s_per_user": points.tokens_per_s_per_user.tolist(),
            "tokens_per_s_per_device": points.tokens_per_s_per_device.tolist(),
            "layouts": [layout.describe() for layout in points.layouts],
        },
        "provenance": made.provenance,
    }


def _write_json(outcomes: tuple[Outcome, ...], prices: PriceList, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([_figures(outcome, prices) for outcome in outcomes], indent=2)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--json {path} cannot be written ({error}).") from error
