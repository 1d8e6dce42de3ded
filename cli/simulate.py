"""`shardwise simulate`: how would a plan do under this traffic, hour by hour, fault by fault?

Sends a recorded or a synthetic trace through the gateway, the replicas and, with --autoscale, the
live controller, in virtual time. With several plans each is simulated and they are compared.
`--speed-up 2` replays the trace in half the time; `--rate-scale 2` sends twice as many requests in
the same time.
Exit code 0: simulated. 2: bad input. 4: no Ray for several plans. 130: interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import typer

from cli.address import AddressOption
from cli.console import duration_s, out
from cli.files import write_json
from cli.question_options import TpotOption, TtftOption
from cli.serving_options import CalibrationOption
from cli.simulate_files import Files, write_requests
from cli.simulate_inputs import Bounds, Case, Question, cases
from cli.simulate_json import Json, document, failed_json, run_json, summary_json
from cli.simulate_many import print_comparison, run_cases
from cli.simulate_options import (
    AutoscaleOption,
    BatchShareOption,
    BatchWaitOption,
    ChromeOption,
    ColdStartOption,
    ConfigOption,
    DecisionsOption,
    DisaggregateOption,
    FailOption,
    FailuresOption,
    ForecastOption,
    FormatOption,
    JsonOption,
    LengthPredictorOption,
    LimitOption,
    MaxReplicasOption,
    MinReplicasOption,
    OutputScaleOption,
    PlanOption,
    PlotOption,
    PolicyOption,
    PromptScaleOption,
    RateScaleOption,
    ReplicasOption,
    RequestsOption,
    RescheduleOption,
    ResumeOption,
    RouterOption,
    SeedOption,
    SpeedUpOption,
    TimesOption,
    TraceOption,
    VipShareOption,
    WindowOption,
    apart,
    check_together,
    delay_or_never_s,
    delay_s,
)
from cli.simulate_panels import panels
from cli.simulate_plots import write_panels
from cli.simulate_report import print_case, print_misfit, print_run, print_trace
from cli.simulate_run import interruptible, run_case
from cli.simulate_traffic import Traffic, traffic
from cluster.calibration.live_file import read_live
from cluster.costmodel.calibration_file import load_calibration
from cluster.sim.chrome_trace import MOST_REQUESTS, ChromeTrace
from cluster.sim.event_log import NO_LOG
from cluster.sim.failure_file import read_failures
from cluster.sim.failures import Failure, parse_failure
from cluster.sim.task import Summary
from cluster.traces.describe import describe
from serving.settings.config import load_serve_config


def command(
    context: typer.Context,
    *,
    plan: PlanOption,
    trace: TraceOption,
    format_: FormatOption = None,
    window: WindowOption = None,
    rate_scale: RateScaleOption = 1.0,
    speed_up: SpeedUpOption = 1.0,
    prompt_scale: PromptScaleOption = 1.0,
    output_scale: OutputScaleOption = 1.0,
    vip_share: VipShareOption = None,
    batch_share: BatchShareOption = None,
    limit: LimitOption = None,
    replicas: ReplicasOption = None,
    autoscale: AutoscaleOption = False,
    min_replicas: MinReplicasOption = None,
    max_replicas: MaxReplicasOption = None,
    policy: PolicyOption = None,
    forecast: ForecastOption = None,
    disaggregate: DisaggregateOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    config: ConfigOption = None,
    fail: FailOption = None,
    failures: FailuresOption = None,
    cold_start: ColdStartOption = None,
    resume_streams: ResumeOption = None,
    router: RouterOption = "scored",
    length_predictor: LengthPredictorOption = None,
    batch_wait: BatchWaitOption = None,
    reschedule_after: RescheduleOption = None,
    calibration: CalibrationOption = None,
    times: TimesOption = None,
    seed: SeedOption = 0,
    json_: JsonOption = None,
    plot: PlotOption = None,
    chrome_trace: ChromeOption = None,
    decisions: DecisionsOption = None,
    requests: RequestsOption = None,
    address: AddressOption = None,
) -> None:
    """Simulate plans under a trace."""
    check_together(context.params)
    files = Files(
        json=json_,
        plots=tuple(plot or ()),
        chrome_trace=chrome_trace,
        decisions=decisions,
        requests=requests,
    )
    files.check()
    bounds = Bounds(minimum=min_replicas, maximum=max_replicas, policy=policy, forecaster=forecast)
    question = Question(
        config=load_serve_config(config),
        replicas=replicas,
        steered=bounds if autoscale else None,
        apart=None if disaggregate is None else apart(disaggregate),
        ttft_s=None if ttft is None else duration_s(ttft, option="--ttft"),
        tpot_s=None if tpot is None else duration_s(tpot, option="--tpot"),
        failures=_failures(fail, failures),
        cold_start_s=None if cold_start is None else delay_s(cold_start, option="--cold-start"),
        resumes=resume_streams,
        router=router,
        length_predictor=length_predictor,
        batch_wait_s=None if batch_wait is None else delay_s(batch_wait, option="--batch-wait"),
        reschedule_after_s=None
        if reschedule_after is None
        else delay_or_never_s(reschedule_after, option="--reschedule-after"),
        coefficients=None if calibration is None else load_calibration(calibration),
        measured=None if times is None else read_live(times),
    )
    asked = cases(plan, question)
    sent = traffic(
        trace,
        format_name=format_,
        window=window,
        rate_scale=rate_scale,
        speed_up=speed_up,
        prompt_scale=prompt_scale,
        output_scale=output_scale,
        vip_share=vip_share,
        batch_share=batch_share,
        most=limit,
        seed=seed,
    )
    with interruptible(lambda: "interrupted while the trace was read; nothing is written."):
        found = describe(sent)
    console = out()
    print_trace(console, sent, found)
    for case in asked:
        print_case(console, case)
        print_misfit(console, case, found)
    simulated = (
        _simulate_one(asked[0], sent, files, total=found.requests, seed=seed)
        if len(asked) == 1
        else _simulate_all(asked, sent, seed=seed, address=address)
    )
    if files.json is not None:
        inputs = {name.strip("_"): value for name, value in context.params.items()}
        content = document(inputs, sent, found, simulated)
        write_json(content, files.json, option="--json", indent=1)
    if files.named:
        console.print(f"written: {', '.join(str(path) for _, path in files.named)}", markup=False)


def _simulate_one(case: Case, sent: Traffic, files: Files, *, total: int, seed: int) -> list[Json]:
    timeline = ChromeTrace()
    run = run_case(
        case,
        sent,
        total=total,
        seed=seed,
        log=NO_LOG if files.chrome_trace is None else timeline,
        keep=files.requests is not None,
        decisions=files.decisions,
    )
    console = out()
    print_run(console, run)
    for path in files.plots:
        write_panels(panels(run), path, title=f"{case.label} under {sent.trace.name}")
    if files.requests is not None:
        write_requests(run.outcome.record.requests or (), files.requests)
    if files.chrome_trace is not None:
        content = timeline.document(end_s=run.outcome.duration_s)
        write_json(content, files.chrome_trace, option="--chrome-trace")
        if timeline.left_out:
            console.print(
                f"{files.chrome_trace} holds the first {MOST_REQUESTS:,} requests; "
                f"{timeline.left_out:,} later ones are left out",
                markup=False,
            )
    return [run_json(run)]


def _simulate_all(
    asked: Sequence[Case], sent: Traffic, *, seed: int, address: str | None
) -> list[Json]:
    start_s = time.perf_counter()
    results = run_cases(asked, sent, seed=seed, address=address)
    print_comparison(out(), asked, results, seconds=time.perf_counter() - start_s)
    return [
        summary_json(case, result) if isinstance(result, Summary) else failed_json(case, result)
        for case, result in zip(asked, results, strict=True)
    ]


def _failures(words: Sequence[str] | None, file: Path | None) -> tuple[Failure, ...]:
    listed = () if file is None else read_failures(file)
    return (*(parse_failure(text) for text in words or ()), *listed)
