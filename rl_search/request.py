"""What is a planning question, when does it contradict itself, and how is "nothing fits" said?

Invariant: a request that passes `check_request` needs at most the context its models accept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cluster.costmodel.coefficients import Coefficients
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import PLAIN, Serving
from cluster.costmodel.memory import DEFAULT_HEADROOM
from cluster.errors import InputError
from cluster.model.hardware import ClusterSpec
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import served_name_problem
from cluster.model.workload import Slo, Workload
from rl_search.enumeration import Space
from rl_search.question import Priority
from rl_search.rejections import Rejection


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A planning question. Names default to the models' own; `max_model_len` to isl + osl.

    `cluster_text` is how the cluster was named (default: its name), `source` what the engine loads.
    `max_dp` bounds attention data parallelism. `headroom` is the share of device memory left free.
    `rate` of the workload sets the initial number of replicas. `statistic` of TTFT and TPOT keeps
    the bounds. `drafter` is a model or method that drafts where `serving` speculates.
    """

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    cluster_text: str | None = None
    slo: Slo = field(default_factory=Slo)
    priority: Priority = Priority.BALANCED
    space: Space = Space.VLLM
    headroom: float = DEFAULT_HEADROOM
    cross_domain_tp: bool = False
    served_name: str | None = None
    source: str | None = None
    light: ModelSpec | None = None
    light_name: str | None = None
    light_source: str | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    max_dp: int | None = None
    max_model_len: int | None = None
    top: int = 10
    coefficients: Coefficients | None = None  # None: the shipped calibration
    serving: Serving = PLAIN
    statistic: Statistic = Statistic.MEAN
    drafter: str | None = None


def context_of(request: PlanRequest) -> int:
    """Longest sequence the engines are started for."""
    return request.max_model_len or request.workload.isl + request.workload.osl


def check_request(request: PlanRequest) -> None:
    """Raise InputError where the request contradicts the model or itself."""
    needed = request.workload.isl + request.workload.osl
    if request.workload.isl < 1 or request.workload.osl < 1:
        raise InputError("isl and osl must be at least 1 token each.")
    for model in (request.model, request.light):
        if model is not None and needed > model.max_context:
            raise InputError(
                f"isl + osl = {needed} tokens, but {model.name} accepts at most "
                f"{model.max_context}. Fix: shorten the prompt or the output, or choose a model "
                "with a longer context."
            )
    limit = context_of(request)
    if limit < needed:
        raise InputError(
            f"max_model_len {limit} is less than isl + osl = {needed}. "
            f"Fix: pass at least {needed}, or leave it out."
        )
    if limit > request.model.max_context:
        raise InputError(
            f"max_model_len {limit} is more than {request.model.name} accepts "
            f"({request.model.max_context})."
        )
    if not 0.0 <= request.headroom < 1.0:
        raise InputError(f"headroom must be in [0, 1), got {request.headroom:g}.")
    rate = request.workload.rate
    if rate is not None and not (math.isfinite(rate) and rate > 0.0):
        raise InputError(
            f"rate must be finite and more than 0 requests/s, got {rate:g}. "
            "Fix: pass the requests/s you expect, or leave --rate out."
        )
    _check_names(request)


def _check_names(request: PlanRequest) -> None:
    main = request.model.name if request.served_name is None else request.served_name
    names = {"--served-name": main}
    if request.light is not None:
        light = request.light.name if request.light_name is None else request.light_name
        names["--light-name"] = light
    for option, name in names.items():
        problem = served_name_problem(name)
        if problem:
            raise InputError(
                f"a model cannot answer under the name '{name}': {problem} "
                f"Fix: pass another {option}."
            )
    if names.get("--light-name") == main:
        raise InputError(
            f"the light model would answer under the main one's name '{main}'. "
            "Fix: pass another --light-name."
        )


def nothing_fits(
    request: PlanRequest, rejections: tuple[Rejection, ...], *, considered: int
) -> str:
    """The message of "no layout fits": the nearest miss, what each rule rejected, what helps."""
    counts = ", ".join(f"{r.rule} {r.count}" for r in rejections)
    # The last rule to remove anything is the one the best layouts failed.
    misses = [r for r in rejections if r.nearest]
    nearest = misses[-1].nearest if misses else "every layout fails a divisibility rule"
    return (
        f"no layout of {request.model.name} on {request.cluster.name} satisfies the request. "
        f"Nearest miss: {nearest}. Rejected by rule: {counts} of {considered} layouts. "
        f"Fix: {_FIXES.get(misses[-1].rule if misses else '', 'use other devices')}."
    )


_FIXES = {
    "kv_below_context": "lower --max-model-len, or use more devices",
    "memory": (
        "use more devices or devices with more memory, a quantised checkpoint, "
        "or a shorter isl + osl"
    ),
    "ttft": "allow a longer TTFT, a shorter prompt, or use faster devices",
    "tpot": "allow a longer TPOT, or use faster devices or a quantised checkpoint",
}
