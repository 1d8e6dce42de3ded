"""`shardwise search`: find a strategy by learning, or by any of the methods it is measured against.

Strategies are judged by the cost model, or each one simulated under a trace (`--fidelity goodput`);
a budget counts them. The winner is written as a plan, and so is the heuristic's where nothing
better was found. An interrupted search goes on when the same command is run again.
Exit code 0: a plan. 2: bad input. 3: nothing satisfies the request. 4: no Ray, or no RLlib.
130: interrupted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.address import AddressOption
from cli.console import out, resolve_cluster
from cli.files import check_writable, write_json, write_text
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
from cli.search_document import Compared, document, exact_of, worth_comparing
from cli.search_options import (
    BudgetOption,
    CheckpointOption,
    ChunksOption,
    CurriculumOption,
    Fidelity,
    FidelityOption,
    FreshOption,
    JsonOption,
    MethodOption,
    OutOption,
    RegretOption,
    ReportOption,
    RequestsOption,
    RunnersOption,
    SamplesOption,
    SeedOption,
    SimulatorsOption,
    StartOption,
    TauOption,
    TraceOption,
)
from cli.search_print import print_asked, print_found
from cli.search_report import write_report
from cli.search_run import (
    UNITS,
    Judge,
    Place,
    Result,
    default_checkpoint,
    search,
    space_of,
)
from cli.serving_options import (
    BackendOption,
    CalibrationOption,
    OffloadOption,
    PercentileOption,
    PrefixHitOption,
    serving_options,
)
from cli.simulate_run import interruptible
from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.errors import InfeasibleError, InputError
from cluster.model.catalogue import get_model
from cluster.model.workload import Workload
from rl_search.archive import Found
from rl_search.checkpoint import Checkpoint, forget
from rl_search.enumeration import Space
from rl_search.planner import make_plan, plan_of_row, row_of
from rl_search.question import Priority
from rl_search.request import PlanRequest, check_request
from rl_search.runs import PPO, Order
from rl_search.space import ActionSpace


def command(
    *,
    model: ModelOption,
    cluster: Annotated[str, typer.Option(help="`8x8xH100`, a cluster file, or `local`.")],
    isl: IslOption,
    osl: OslOption,
    method: MethodOption = PPO,
    budget: BudgetOption = 2000,
    seed: SeedOption = 0,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    priority: PriorityOption = Priority.THROUGHPUT,
    space: SpaceOption = Space.VLLM,
    fidelity: FidelityOption = Fidelity.COST_MODEL,
    trace: TraceOption = None,
    requests: RequestsOption = 1000,
    headroom: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Share of device memory left free.")
    ] = 0.2,
    max_dp: Annotated[
        int | None, typer.Option(min=1, help="Largest attention data parallelism.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Longest sequence to serve. Default isl + osl.")
    ] = None,
    served_name: Annotated[
        str | None, typer.Option(help="Name under which the model answers.")
    ] = None,
    backend: BackendOption = "vllm",
    prefix_hit: PrefixHitOption = 0.0,
    offload: OffloadOption = 0.0,
    calibration: CalibrationOption = None,
    percentile: PercentileOption = Statistic.MEAN,
    start: StartOption = None,
    chunks: ChunksOption = 5,
    tau: TauOption = 0.95,
    samples: SamplesOption = 64,
    curriculum: CurriculumOption = False,
    address: AddressOption = None,
    runners: RunnersOption = None,
    simulators: SimulatorsOption = None,
    checkpoint: CheckpointOption = None,
    fresh: FreshOption = False,
    regret: RegretOption = None,
    json_: JsonOption = None,
    report: ReportOption = None,
    path: OutOption = Path("plan.json"),
) -> None:
    """Search for the best strategy and write it as a plan."""
    for option, target in (("--out", path), ("--json", json_), ("--report", report)):
        _check_file(target, option=option)
    spec, devices = get_model(model), resolve_cluster(cluster)
    serving = serving_options(
        spec,
        devices,
        backend=backend,
        prefix_hit=prefix_hit,
        draft_tokens=None,
        draft_acceptance=None,
        draft_share=None,
        draft_model=None,
        offload=offload,
        calibration=calibration,
    )
    request = PlanRequest(
        model=spec,
        cluster=devices,
        cluster_text=cluster,
        workload=Workload(isl=isl, osl=osl, prefix_hit=serving.prefix_hit),
        slo=slo_of(ttft, tpot),
        priority=priority,
        space=space,
        headroom=headroom,
        served_name=served_name,
        source=model,
        max_dp=max_dp,
        max_model_len=max_model_len,
        coefficients=serving.coefficients,
        serving=serving.serving,
        statistic=percentile,
    )
    check_request(request)
    order = Order(
        method=method,
        budget=budget,
        seed=seed,
        starts=tuple(one.value for one in start or ()),
        ppo=_ppo(chunks=chunks, tau=tau, samples=samples, curriculum=curriculum)
        if method == PPO
        else None,
    )
    judge = Judge(fidelity=fidelity, trace=trace, requests=requests)
    _go(
        request,
        order,
        judge=judge,
        place=Place(address=address, runners=runners, simulators=simulators),
        files=Files(plan=path, json=json_, report=report),
        saving=Saving(directory=checkpoint, fresh=fresh),
        regret=regret,
    )


@dataclass(frozen=True, kw_only=True)
class Files:
    """What is written."""

    plan: Path
    json: Path | None
    report: Path | None


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Where a search is saved, None for a place of its own; `fresh` forgets what is there."""

    directory: Path | None
    fresh: bool


def _go(
    request: PlanRequest,
    order: Order,
    *,
    judge: Judge,
    place: Place,
    files: Files,
    saving: Saving,
    regret: bool | None,
) -> None:
    unit = _unit(request, judge)
    console, began = out(), time.perf_counter()
    space = space_of(request)
    print_asked(console, request, order, space, unit=unit)
    if not space.size:
        make_plan(request)  # says which rule rejected what, and what came nearest
        raise InfeasibleError("no strategy has room for its weights and one sequence.")
    kept = _checkpoint(request, order, space, judge=judge, saving=saving)
    with interruptible(
        lambda: f"interrupted; run the same command again to go on (saved in {kept.directory})."
    ):
        result = search(order, space, request, judge=judge, place=place, checkpoint=kept, unit=unit)
    seconds = time.perf_counter() - began
    exact = exact_of(request, space) if worth_comparing(space, judge, asked=regret) else None
    winner = _winner(result)
    if winner is None:
        kept.clear()
        raise InfeasibleError(
            f"none of {result.outcome.archive.calls:,} strategies judged satisfies the request. "
            "Fix: raise --budget, relax --ttft or --tpot, or see what is possible with "
            "`shardwise plan`."
        )
    layout = space.layout(winner.action)
    row = row_of(request, layout)
    plan = plan_of_row(request, row)
    write_text(plan.dumps(), files.plan, option="--out")
    compared = Compared(winner=winner, layout=layout, plan=plan, exact=exact, unit=unit)
    made = document(
        request, order, space, result, compared, fidelity=judge.fidelity, seconds=seconds
    )
    print_found(console, made, row=row)
    if files.json is not None:
        write_json(made, files.json, option="--json", indent=2)
    if files.report is not None:
        write_report(files.report, [made])
    kept.clear()
    written = [files.plan, files.json, files.report]
    console.print(f"written: {', '.join(str(each) for each in written if each is not None)}")


def _winner(result: Result) -> Found | None:
    """The better of what was found and the heuristic's: no plan ships that is worse than it."""
    both = [found for found in (result.outcome.archive.best, result.heuristic) if found]
    return max(both, key=lambda found: found.value) if both else None


def _ppo(**settings: Any) -> Any:
    """PPO's settings; without RLlib the search itself says what is missing."""
    try:
        from rl_search.train import PpoOptions
    except ImportError:
        return None
    return PpoOptions(**settings)


def _unit(request: PlanRequest, judge: Judge) -> str:
    units = UNITS[judge.fidelity]
    name = request.priority.value
    if name not in units:
        raise InputError(
            f"--fidelity {judge.fidelity.value} maximises {', '.join(units)}, not {name}. Fix: "
            f"--priority {next(iter(units))}, or judge by the cost model."
        )
    if judge.fidelity is Fidelity.COST_MODEL and judge.trace is not None:
        raise InputError(
            "--trace is simulated, which the cost model does not do. Fix: --fidelity goodput, or "
            "leave --trace out."
        )
    return units[name]


def _checkpoint(
    request: PlanRequest, order: Order, space: ActionSpace, *, judge: Judge, saving: Saving
) -> Checkpoint:
    question = _asked(request, order, space, judge=judge)
    directory = saving.directory or default_checkpoint(question)
    if saving.fresh:
        forget(directory)
    return Checkpoint(directory, question)


def _asked(
    request: PlanRequest, order: Order, space: ActionSpace, *, judge: Judge
) -> Mapping[str, object]:
    """Everything that an answer depends on."""
    ppo = None
    if order.ppo is not None:
        ppo = {k: v for k, v in asdict(order.ppo).items() if k not in ("runners", "round_s")}
    return {
        "model": f"{request.model.name}, {request.model.params} parameters",
        "cluster": request.cluster_text or request.cluster.name,
        "workload": asdict(request.workload),
        "slo": asdict(request.slo),
        "serving": repr(request.serving),
        "headroom": request.headroom,
        "calibration": _digest(request.coefficients),
        "statistic": request.statistic.value,
        "priority": request.priority.value,
        "space": [[head.name, *head.values] for head in space.heads],
        "size": space.size,
        "method": order.method,
        "budget": order.budget,
        "seed": order.seed,
        "starts": list(order.starts),
        "ppo": ppo,
        "fidelity": judge.fidelity.value,
        "trace": judge.trace,
        "requests": judge.requests,
    }


def _digest(coefficients: Coefficients | None) -> str | None:
    """What tells one calibration from another, None for the shipped one."""
    if coefficients is None:
        return None
    named = zip(coefficients.names, coefficients.values.tolist(), strict=True)
    return hashlib.sha256(repr(sorted(named)).encode()).hexdigest()[:16]


def _check_file(path: Path | None, *, option: str) -> None:
    """Before a search that may take long. Raises InputError."""
    if path is None:
        return
    ending = ".html" if option == "--report" else ".json"
    if path.suffix != ending:
        raise InputError(f"{option} {path} must end in {ending}. Fix: call it {path.stem}{ending}.")
    check_writable(path, option=option)
