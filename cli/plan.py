"""`shardwise plan`: which layout should this model run under on this cluster?

Searches every layout, prints what was understood, what was rejected and why, the ranking, and the
chosen layout with its parts; writes the plan file and the frontier's plots beside it.
Exit code 0: a plan. 2: bad input. 3: no layout fits, with the nearest miss.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from cli.console import out, resolve_cluster
from cli.percentiles_report import print_disaggregation, print_percentiles
from cli.plan_report import (
    print_chosen,
    print_ranking,
    print_rejections,
    print_understood,
)
from cli.plots import check_ending, write_plot
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
from cli.serving_options import (
    BackendOption,
    CalibrationOption,
    DisaggregateOption,
    DraftAcceptanceOption,
    DraftModelOption,
    DraftShareOption,
    DraftTokensOption,
    OffloadOption,
    PercentileOption,
    PrefixHitOption,
    serving_options,
)
from cluster.costmodel.distributions import Statistic
from cluster.errors import InputError
from cluster.model.catalogue import get_model
from cluster.model.workload import Workload
from rl_search.disaggregation import check_comparable
from rl_search.enumeration import Space
from rl_search.planner import PlanResult, make_plan
from rl_search.question import Priority
from rl_search.request import PlanRequest


def command(
    *,
    model: ModelOption,
    cluster: Annotated[str, typer.Option(help="`4x8xH200`, `8xH100`, a cluster file, or `local`.")],
    isl: IslOption,
    osl: OslOption,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests/s expected; sets initial replicas.")
    ] = None,
    priority: PriorityOption = Priority.BALANCED,
    space: SpaceOption = Space.VLLM,
    headroom: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Share of device memory left free.")
    ] = 0.2,
    cross_domain_tp: Annotated[
        bool, typer.Option(help="Allow tensor parallelism across scale-up domains.")
    ] = False,
    served_name: Annotated[
        str | None, typer.Option(help="Name under which the model answers.")
    ] = None,
    model_source: Annotated[
        str | None, typer.Option(help="What the engine loads, if not --model.")
    ] = None,
    light: Annotated[
        str | None, typer.Option(help="A lighter model to fall back to under overload.")
    ] = None,
    light_name: Annotated[
        str | None, typer.Option(help="Name under which the light model answers.")
    ] = None,
    light_source: Annotated[
        str | None, typer.Option(help="What the engine loads, if not --light.")
    ] = None,
    min_replicas: Annotated[int | None, typer.Option(min=0, help="Default 1.")] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Default: as many as fit the cluster.")
    ] = None,
    max_dp: Annotated[
        int | None,
        typer.Option(min=1, help="Largest attention data parallelism; `shardwise up` serves 1."),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence to serve. Default isl + osl.")
    ] = None,
    backend: BackendOption = "vllm",
    prefix_hit: PrefixHitOption = 0.0,
    draft_tokens: DraftTokensOption = None,
    draft_acceptance: DraftAcceptanceOption = None,
    draft_share: DraftShareOption = None,
    draft_model: DraftModelOption = None,
    offload: OffloadOption = 0.0,
    calibration: CalibrationOption = None,
    percentile: PercentileOption = Statistic.MEAN,
    disaggregate: DisaggregateOption = False,
    top: Annotated[int, typer.Option(min=1, max=100, help="Layouts to list.")] = 10,
    plot: Annotated[
        list[Path] | None,
        typer.Option(help="Frontier as .png or .html. Default: both, beside the plan."),
    ] = None,
    path: Annotated[Path, typer.Option("--out", help="Where to write the plan.")] = Path(
        "plan.json"
    ),
) -> None:
    """Search the best parallel layout and write it as a plan."""
    for target in plot or ():  # before a search that may take long
        check_ending(target)
    spec, devices = get_model(model), resolve_cluster(cluster)
    options = serving_options(
        spec,
        devices,
        backend=backend,
        prefix_hit=prefix_hit,
        draft_tokens=draft_tokens,
        draft_acceptance=draft_acceptance,
        draft_share=draft_share,
        draft_model=draft_model,
        offload=offload,
        calibration=calibration,
    )
    request = PlanRequest(
        model=spec,
        cluster=devices,
        cluster_text=cluster,
        workload=Workload(isl=isl, osl=osl, rate=rate, prefix_hit=options.prefix_hit),
        slo=slo_of(ttft, tpot),
        priority=priority,
        space=space,
        headroom=headroom,
        cross_domain_tp=cross_domain_tp,
        served_name=served_name,
        source=model_source or model,
        light=None if light is None else get_model(light),
        light_name=light_name,
        light_source=light_source or light,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        max_dp=max_dp,
        max_model_len=max_model_len,
        top=top,
        coefficients=options.coefficients,
        serving=options.serving,
        drafter=options.drafter,
        statistic=percentile,
    )
    if disaggregate:
        check_comparable(request)
    console = out()
    print_understood(console, request)
    start = time.perf_counter()
    result = make_plan(request)
    print_rejections(console, result, seconds=time.perf_counter() - start)
    print_ranking(console, result, priority=priority)
    print_chosen(console, result)
    print_percentiles(console, request, result)
    if disaggregate:
        print_disaggregation(console, request, result)
    _write(result, request, path=path, plots=plot)


def _write(
    result: PlanResult, request: PlanRequest, *, path: Path, plots: list[Path] | None
) -> None:
    console = out()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result.plan.dumps(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {path} cannot be written ({error}).") from error
    beside = path.with_suffix("")
    targets = plots or [Path(f"{beside}.pareto.png"), Path(f"{beside}.pareto.html")]
    title = (
        f"{request.model.name} on {request.cluster.name}, "
        f"{request.workload.isl} in / {request.workload.osl} out"
    )
    for target in targets:
        write_plot(result, target, title=title)
    console.print(f"\nwritten: {path}, {', '.join(str(target) for target in targets)}")
