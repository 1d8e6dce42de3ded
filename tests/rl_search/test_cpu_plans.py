"""Plans for CPU cores: ranks share them, memory is the limit, and the engine is told its cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.costmodel.estimate import estimate
from cluster.costmodel.memory import CPU_KV_LIMIT
from cluster.errors import InfeasibleError, InputError
from cluster.model.catalogue import get_model
from cluster.model.devices import get_device
from cluster.model.hardware import ClusterSpec, NodeGroup
from cluster.model.layout import Layout, LayoutTable
from cluster.model.plan import Plan
from cluster.model.rules import Severity
from cluster.model.workload import Slo, Workload
from rl_search.checks import check_plan
from rl_search.enumeration import CPU_BATCHES, CPU_CHUNKS
from rl_search.kv_cache import BLOCK_TOKENS, cpu_kv_cache
from rl_search.planner import make_plan
from rl_search.pool_checks import Finding
from rl_search.request import PlanRequest
from tests.costmodel import specs

GIB = 1024.0**3
MAIN, LIGHT = get_model("smollm2-135m-instruct"), get_model("smollm2-135m-instruct-int8")


def cores(count: int = 2, *, memory_gib: float = 12.0) -> ClusterSpec:
    device = replace(get_device("cpu"), memory_bytes=memory_gib * GIB, domain=count)
    return ClusterSpec(
        name="cores", groups=(NodeGroup(nodes=1, devices_per_node=count, device=device),)
    )


def request(**changes: object) -> PlanRequest:
    base = PlanRequest(
        model=MAIN,
        cluster=cores(),
        workload=Workload(isl=256, osl=128),
        slo=Slo(ttft_s=10.0, tpot_s=0.5),
        max_model_len=2048,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def findings(plan: Plan, cluster: ClusterSpec) -> list[Finding]:
    return check_plan(plan, {"main": MAIN, "light": LIGHT}, cluster)


def test_a_light_pool_takes_no_core_from_main():
    plan = make_plan(request(light=LIGHT, max_replicas=2)).plan
    assert plan.main.replicas.maximum == 2
    assert plan.light is not None
    assert (plan.light.replicas.minimum, plan.light.replicas.maximum) == (0, 1)
    assert findings(plan, cores()) == []


def test_more_ranks_than_cores_are_allowed_with_a_warning():
    cluster = cores(1, memory_gib=24.0)
    plan = make_plan(request(cluster=cluster, light=LIGHT, max_replicas=2)).plan
    found = findings(plan, cluster)
    assert [(f.rule, f.severity) for f in found] == [("shared_cores", Severity.WARNING)]
    assert "50% of them" in found[0].cost


def test_by_default_main_has_a_replica_per_core():
    assert make_plan(request(light=LIGHT)).plan.main.replicas.maximum == 2


def test_memory_bounds_the_replicas():
    with pytest.raises(InputError, match=r"need more memory than there is: \d+ replica"):
        make_plan(request(max_replicas=99))
    small = cores(2, memory_gib=3.5)
    assert make_plan(request(cluster=small, light=LIGHT)).plan.main.replicas.maximum == 1


def test_replicas_that_overfill_the_memory_are_found():
    data: dict[str, Any] = make_plan(request()).plan.model_dump(mode="json")
    data["pools"][0]["replicas"]["maximum"] = 50
    found = findings(Plan.model_validate(data), cores())
    assert [f.rule for f in found if f.severity is Severity.ERROR] == ["shared_memory"]


def test_the_engine_is_told_to_start_eagerly_and_how_much_cache_to_take():
    main = make_plan(request()).plan.main
    assert main.engine_args["enforce_eager"] is True
    assert main.expected is not None
    assert main.engine_args["kv_cache_memory_bytes"] == main.expected.memory_bytes["kv"]
    needed = main.layout.max_num_seqs * 384
    assert needed <= main.expected.kv_capacity_tokens < needed + 2048 + BLOCK_TOKENS
    assert main.layout.tp == main.layout.pp == 1
    assert main.layout.max_num_seqs in CPU_BATCHES
    assert main.layout.max_num_batched_tokens in CPU_CHUNKS


def test_small_batches_are_planned_only_where_the_bounds_ask_for_them():
    tight = make_plan(request(slo=Slo(tpot_s=0.06))).plan.main
    assert tight.layout.max_num_seqs < min(CPU_BATCHES)
    with pytest.raises(InfeasibleError, match="TPOT"):
        make_plan(request(slo=Slo(tpot_s=0.001)))


def test_a_pipeline_on_cores_is_compiled():
    big = cores(2, memory_gib=2.45)  # the weights of a whole replica do not fit beside the reserve
    main = make_plan(request(cluster=big, slo=Slo(), max_model_len=384)).plan.main
    assert main.layout.pp == 2
    assert "enforce_eager" not in main.engine_args


def test_cores_spread_no_experts():
    cluster, short = cores(4, memory_gib=80.0), Workload(isl=64, osl=16)
    result = make_plan(
        request(model=specs.moe(layers=2), cluster=cluster, slo=Slo(), workload=short)
    )
    assert all(row.layout.moe_ep == 1 for row in result.rows)


@given(
    sequences=st.integers(1, 512),
    context=st.integers(2, 8192),
    longest=st.integers(2, 8192),
    memory_gib=st.floats(3.0, 12.0),
)
def test_the_cache_holds_the_batch_or_all_that_is_allowed(sequences, context, longest, memory_gib):
    layout = Layout(max_num_seqs=sequences)
    made = estimate(
        MAIN,
        cores(memory_gib=memory_gib).groups[0],
        LayoutTable.from_layouts([layout]),
        Workload(isl=context - 1, osl=1),
        concurrency=1,
    )
    cache = cpu_kv_cache(made.memory, 0, layout=layout, context=context, max_model_len=longest)
    allowed = min(float(made.memory.kv_budget[0]), CPU_KV_LIMIT)
    assert cache.bytes_per_rank <= allowed + 1
    block = BLOCK_TOKENS * MAIN.kv_bytes_per_token
    if cache.tokens < sequences * context or cache.tokens < longest:
        assert cache.bytes_per_rank + block >= allowed


def test_planned_data_parallelism_is_a_warning_and_can_be_ruled_out():
    model = replace(specs.moe(), experts=64)
    cluster = ClusterSpec(name="8", groups=(specs.group(),))
    asked = PlanRequest(model=model, cluster=cluster, workload=Workload(isl=2000, osl=500))
    wide = next(row for row in make_plan(replace(asked, top=50)).rows if row.layout.dp > 1)
    narrow = make_plan(replace(asked, max_dp=1, top=50))
    assert all(row.layout.dp == 1 for row in narrow.rows)
    data = narrow.plan.model_dump(mode="json")
    names = ("tp", "dp", "pp", "moe_tp", "moe_ep", "max_num_seqs", "max_num_batched_tokens")
    data["pools"][0]["layout"] = {name: getattr(wide.layout, name) for name in names}
    data["pools"][0] |= {"engine_args": {}, "expected": None}
    data["pools"][0]["replicas"] = {"minimum": 1, "initial": 1, "maximum": 1}
    found = check_plan(Plan.model_validate(data), {"main": model}, cluster)
    assert [(f.rule, f.severity) for f in found] == [("serving", Severity.WARNING)]
