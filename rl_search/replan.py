"""Is there a better layout for what is served now? The planner's search, with another workload.

Model, devices, bounds, context and serving options are the running plan's; only the workload is
what was seen. The layout that runs is estimated under the same workload, so that both are compared
by the same model.

    gain = goodput per device of the new layout / of the old one - 1    (goodput 0: misses the SLO)

Among layouts within the plan's bounds the one with the highest goodput per device is found, which
is what a move is judged by; without bounds the balanced one, as `plan` does.

Invariants: the light pool stays as it runs; the context never shrinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from cluster.costmodel.memory import DEFAULT_HEADROOM
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.model_spec import ModelSpec
from cluster.model.plan import Plan, PoolSection
from cluster.model.workload import Slo, Workload
from rl_search.plan_writer import expectation
from rl_search.planner import make_plan, row_of
from rl_search.question import Priority
from rl_search.request import PlanRequest
from rl_search.serving_args import serving_of

# Engine arguments that follow from a layout and are left out where they do not apply.
_OF_LAYOUT = ("enforce_eager", "enable_expert_parallel", "kv_cache_memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A layout under the workload. `devices`: of a replica; `goodput_rps`: of a replica."""

    layout: str
    devices: int
    ttft_s: float
    tpot_s: float
    goodput_rps: float

    @property
    def goodput_per_device(self) -> float:
        """Requests/s within the SLO, per device; 0 if it misses the SLO."""
        return self.goodput_rps / self.devices


@dataclass(frozen=True, kw_only=True)
class Found:
    """The plan that was found, and what it and the running one are worth."""

    plan: Plan
    old: Worth
    new: Worth

    @property
    def gain(self) -> float:
        """Share of goodput per device that is won; infinite if the old layout misses the SLO."""
        if self.old.goodput_per_device == 0.0:
            return math.inf if self.new.goodput_per_device > 0.0 else 0.0
        return self.new.goodput_per_device / self.old.goodput_per_device - 1.0

    @property
    def same_layout(self) -> bool:
        """Whether nothing would change but the number of replicas."""
        return self.old.layout == self.new.layout

    def worth_a_move(self, *, min_gain: float) -> bool:
        """Whether it wins enough, or meets bounds that the old layout misses."""
        return not self.same_layout and self.gain >= min_gain


def seen_workload(
    plan: Plan, *, prompt_tokens: float, output_tokens: float, requests_per_s: float, context: int
) -> Workload:
    """What was seen as a workload to plan for. `context`: no request is longer, tokens."""
    isl = min(max(1, round(prompt_tokens)), context - 1)
    osl = min(max(1, round(output_tokens)), context - isl)
    section = plan.main.serving
    return Workload(
        isl=isl,
        osl=osl,
        rate=requests_per_s if requests_per_s > 0.0 else None,
        prefix_hit=0.0 if section is None else section.prefix_hit,
    )


def find(
    plan: Plan,
    group: NodeGroup,
    *,
    model: ModelSpec,
    light: ModelSpec | None,
    workload: Workload,
    context: int,
) -> Found:
    """The best plan for the workload on the running plan's devices.

    Raises InputError where the workload contradicts the model, InfeasibleError where nothing fits.
    """
    request = _request(plan, group, model=model, light=light, workload=workload, context=context)
    result = make_plan(request)
    running = plan.main.layout.to_layout(replicas=1)
    row = row_of(replace(request, light=None), running)
    old = expectation(row.estimates, row.index, request.slo)
    new = result.plan.main
    assert new.expected is not None
    main = new.model_copy(update={"engine_args": _engine_args(plan.main, new)})
    pools = (main, *(pool for pool in plan.pools if pool.name != main.name))
    return Found(
        plan=result.plan.model_copy(update={"pools": pools, "cluster": plan.cluster}),
        old=Worth(
            layout=_words(plan.main),
            devices=running.devices_per_replica,
            ttft_s=old.ttft_s,
            tpot_s=old.tpot_s,
            goodput_rps=old.goodput_rps,
        ),
        new=Worth(
            layout=_words(new),
            devices=new.layout.to_layout(replicas=1).devices_per_replica,
            ttft_s=new.expected.ttft_s,
            tpot_s=new.expected.tpot_s,
            goodput_rps=new.expected.goodput_rps,
        ),
    )


def _request(
    plan: Plan,
    group: NodeGroup,
    *,
    model: ModelSpec,
    light: ModelSpec | None,
    workload: Workload,
    context: int,
) -> PlanRequest:
    main, section = plan.main, plan.light
    slo = Slo(ttft_s=plan.slo.ttft_s, tpot_s=plan.slo.tpot_s)
    used = main.engine_args.get("gpu_memory_utilization")
    return PlanRequest(
        model=model,
        cluster=ClusterSpec(name=plan.cluster.spec, groups=(group,)),
        cluster_text=plan.cluster.spec,
        workload=workload,
        slo=slo,
        priority=Priority.BALANCED if slo == Slo() else Priority.THROUGHPUT,
        headroom=1.0 - float(used) if isinstance(used, int | float) else DEFAULT_HEADROOM,
        served_name=main.model.name,
        source=main.model.source,
        light=light,
        light_name=None if section is None else section.model.name,
        light_source=None if section is None else section.model.source,
        min_replicas=main.replicas.minimum,
        max_dp=1,
        max_model_len=context,
        serving=serving_of(main.serving),
        drafter=_drafter(main),
    )


def _drafter(pool: PoolSection) -> str | None:
    config = pool.engine_args.get("speculative_config") or {}
    name = config.get("model") or config.get("method")
    return None if name is None else str(name)


def _engine_args(old: PoolSection, new: PoolSection) -> dict[str, Any]:
    """The new layout's, beside what the operator had added to the old one's."""
    kept = {name: value for name, value in old.engine_args.items() if name not in _OF_LAYOUT}
    return kept | new.engine_args


def _words(pool: PoolSection) -> str:
    layout = pool.layout.to_layout(replicas=1)
    text = layout.describe().removesuffix(" x1")
    return f"{text}, batch {layout.max_num_seqs}, chunk {layout.max_num_batched_tokens}"
