"""Options of `simulate`: what they are called, what they say, and how their words become numbers.

Unlike a bound, a delay may be zero; one that may be endless is written `never`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from autoscaler.forecast import methods
from autoscaler.need import SCALING_POLICIES
from cluster.errors import InputError
from cluster.lengths.predictors import PREDICTORS
from cluster.routers import ROUTERS
from cluster.traces.formats import FORMATS

_UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|s|min|h)")
_SPLIT = re.compile(r"(\d{1,6})P(\d{1,6})D", re.IGNORECASE)
NEVER_WORD = "never"

PlanOption = Annotated[
    list[Path], typer.Option("--plan", help="A plan file; repeat it to compare several.")
]
TraceOption = Annotated[
    str,
    typer.Option(
        "--trace", help="A trace file, or e.g. `poisson:rate=5,duration=10min,isl=1024,osl=256`."
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", help=f"Of the file, where it is not seen: {', '.join(f.name for f in FORMATS)}."
    ),
]
WindowOption = Annotated[
    str | None, typer.Option("--window", help="Part of the trace, e.g. `10min:20min` or `1h:`.")
]
RateScaleOption = Annotated[
    float,
    typer.Option("--rate-scale", help="Times as many requests in the same time: copied or left."),
]
SpeedUpOption = Annotated[
    float,
    typer.Option("--speed-up", help="The same requests in 1/X of the time, so X times the rate."),
]
PromptScaleOption = Annotated[
    float, typer.Option("--prompt-scale", help="Prompts so many times as long.")
]
OutputScaleOption = Annotated[
    float, typer.Option("--output-scale", help="Outputs so many times as long.")
]
VipShareOption = Annotated[
    float | None, typer.Option("--vip-share", help="Share of requests of class vip, drawn.")
]
BatchShareOption = Annotated[
    float | None, typer.Option("--batch-share", help="Share of requests of class batch, drawn.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="The first N requests only.")
]
ReplicasOption = Annotated[
    int | None,
    typer.Option("--replicas", help="Replicas of the main pool. Default: the plan's initial."),
]
AutoscaleOption = Annotated[
    bool, typer.Option("--autoscale", help="Let the controller scale and degrade, as when live.")
]
RouterOption = Annotated[
    str, typer.Option("--router", help=f"Who chooses replicas: {', '.join(ROUTERS)}.")
]
LengthPredictorOption = Annotated[
    str | None,
    typer.Option(
        "--length-predictor",
        help=f"Who predicts output lengths: {', '.join(PREDICTORS)}. Default: the configuration's.",
    ),
]
MinReplicasOption = Annotated[
    int | None, typer.Option("--min-replicas", min=0, help="With --autoscale. Default: the plan's.")
]
MaxReplicasOption = Annotated[
    int | None, typer.Option("--max-replicas", min=1, help="With --autoscale. Default: the plan's.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", help=f"With --autoscale: {', '.join(SCALING_POLICIES)}."),
]
ForecastOption = Annotated[
    str | None,
    typer.Option("--forecast", help=f"With --autoscale: {', '.join(methods())}."),
]
DisaggregateOption = Annotated[
    str | None,
    typer.Option("--disaggregate", help="Prefill and decode replicas apart, e.g. `2P6D`."),
]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Serving configuration (limits, steering).")
]
FailOption = Annotated[
    list[str] | None,
    typer.Option("--fail", help="A failure, e.g. `crash@120s:main/1`; repeat it."),
]
FailuresOption = Annotated[Path | None, typer.Option("--failures", help="YAML file of failures.")]
ColdStartOption = Annotated[
    str | None,
    typer.Option("--cold-start", help="To start a replica. Default: estimated of its weights."),
]
ResumeOption = Annotated[
    bool | None,
    typer.Option(
        "--resume-streams/--no-resume-streams", help="Streams of a lost replica go on elsewhere."
    ),
]
BatchWaitOption = Annotated[
    str | None,
    typer.Option("--batch-wait", help="Longest wait to place requests together; `0s`: none."),
]
RescheduleOption = Annotated[
    str | None,
    typer.Option(
        "--reschedule-after", help="When a request that has not started may move, or `never`."
    ),
]
TimesOption = Annotated[
    Path | None,
    typer.Option("--times", help="Step times measured by `calibrate --live`, for the main pool."),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of all that is drawn.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write all figures and the time series here.")
]
PlotOption = Annotated[
    list[Path] | None, typer.Option("--plot", help="Plots over time as .png or .html; repeat it.")
]
ChromeOption = Annotated[
    Path | None,
    typer.Option("--chrome-trace", help="Timeline of requests for Perfetto or chrome://tracing."),
]
DecisionsOption = Annotated[
    Path | None, typer.Option("--decisions", help="With --autoscale: decision log for `replay`.")
]
RequestsOption = Annotated[
    Path | None, typer.Option("--requests", help="CSV file with a line per finished request.")
]


_APART = (
    ("autoscale", "replicas", "the controller decides how many there are"),
    ("autoscale", "disaggregate", "the controller knows no prefill and decode replicas"),
    ("replicas", "disaggregate", "which says how many there are"),
)
_STEERING = ("min_replicas", "max_replicas", "policy", "forecast", "decisions")
_OF_ONE = ("plot", "chrome_trace", "decisions", "requests", "times")


def check_together(given: Mapping[str, object]) -> None:
    """Raise InputError where options contradict each other. `given`: by parameter."""
    said = {name for name, value in given.items() if not _left_out(value)}
    for one, other, why in _APART:
        if {one, other} <= said:
            raise InputError(
                f"{_option(one)} and {_option(other)} exclude each other: {why}. Fix: leave one "
                "out."
            )
    for name in _STEERING:
        if name in said and "autoscale" not in said:
            raise InputError(
                f"{_option(name)} is of the controller, and nobody steers. Fix: add --autoscale."
            )
    several = len(given["plan"]) > 1 if isinstance(given["plan"], list | tuple) else False
    for name in _OF_ONE:
        if several and name in said:
            raise InputError(
                f"{_option(name)} is of one simulation, and several plans are compared. Fix: pass "
                "one --plan."
            )
    if "address" in said and not several:
        raise InputError(
            "--address is where several plans are simulated; one is simulated here. Fix: leave "
            "it out, or pass http://HEAD:8265 to simulate it in a job."
        )


def _left_out(value: object) -> bool:
    """Whether it is what an option is that was not given; 0 was."""
    return value is None or value is False or value in ([], ())


def _option(parameter: str) -> str:
    return "--" + parameter.strip("_").replace("_", "-")


def delay_s(text: str, *, option: str) -> float:
    """Seconds of `50ms`, `0s`, `2min`, `1h`. Raises InputError naming the option."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise InputError(
            f"{option} '{text}' is not a duration. Fix: write a number with its unit, "
            f"e.g. `500ms` or `60s` (units: {', '.join(_UNITS)})."
        )
    return float(match[1]) * _UNITS[match[2]]


def delay_or_never_s(text: str, *, option: str) -> float:
    """The same, or infinity for `never`."""
    never = text.strip().lower() == NEVER_WORD
    return math.inf if never else delay_s(text, option=option)


def window_s(text: str) -> tuple[float, float]:
    """(start, end) of `10min:20min`; either may be left out. Raises InputError."""
    start, colon, end = text.partition(":")
    if not colon:
        raise InputError(f"--window '{text}' has no end. Fix: write START:END, e.g. `10min:20min`.")
    start_s = delay_s(start, option="--window") if start.strip() else 0.0
    end_s = delay_s(end, option="--window") if end.strip() else math.inf
    if not start_s < end_s:
        raise InputError(f"--window '{text}' ends before it begins. Fix: write START:END.")
    return start_s, end_s


def apart(text: str) -> tuple[int, int]:
    """(prefill, decode) replicas of `2P6D`. Raises InputError."""
    match = _SPLIT.fullmatch(text.strip())
    if match is None or not int(match[1]) or not int(match[2]):
        raise InputError(
            f"--disaggregate '{text}' does not say how many replicas prefill and decode, at least "
            "1 of each. Fix: write e.g. `2P6D`."
        )
    return int(match[1]), int(match[2])
