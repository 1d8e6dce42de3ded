from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import InputError
from cluster.model.hardware import ClusterSpec
from cluster.model.plan import Plan
from cluster.model.workload import Slo, Workload
from rl_search.checks import check_plan, group_of
from rl_search.planner import make_plan
from rl_search.request import PlanRequest
from tests.costmodel import specs

CLUSTER = ClusterSpec(name="4x8xtest", groups=(specs.group(nodes=4),))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(
        PlanRequest(
            model=specs.dense(),
            cluster=CLUSTER,
            workload=Workload(isl=2000, osl=500),
            slo=Slo(ttft_s=2.0, tpot_s=0.03),
        )
    ).plan


def edited(plan: Plan, **layout: int) -> Plan:
    """The plan with another layout, its engine arguments following, one replica, no expectation."""
    data: dict[str, Any] = plan.model_dump(mode="json")
    pool = data["pools"][0]
    pool["layout"] = {"tp": 1, "moe_tp": layout.get("tp", 1), **layout}
    pool["engine_args"] = {"max_model_len": 2500, "gpu_memory_utilization": 0.8}
    pool["replicas"] = {"minimum": 1, "initial": 1, "maximum": 1}
    pool["expected"] = None
    return Plan.model_validate(data)


def rules(plan: Plan, cluster: ClusterSpec = CLUSTER) -> dict[str, str]:
    found = check_plan(plan, {"main": specs.dense()}, cluster)
    assert all(f.cost and f.fix and f.problem for f in found)
    return {f.rule: f.cost for f in found}


def test_a_fresh_plan_is_clean(plan):
    assert rules(plan) == {}


@pytest.mark.parametrize(
    ("layout", "rule"),
    [
        ({"tp": 3}, "heads"),
        ({"tp": 16}, "domain"),
        ({"tp": 8, "pp": 64}, "devices"),
        ({"pp": 16}, "pipeline_depth"),
        ({"tp": 1, "max_num_seqs": 4096}, "batch_beyond_memory"),
        ({"pp": 8, "max_num_seqs": 1024, "max_num_batched_tokens": 16384}, "slo_tpot"),
    ],
)
def test_each_mistake_is_named(plan, layout, rule):
    assert rule in rules(edited(plan, **layout))


def test_tensor_parallelism_across_domains_costs_more_than_inside(plan):
    cost = rules(edited(plan, tp=16))["domain"]
    across, inside = (float(word) for word in cost.split() if word.replace(".", "").isdigit())
    assert across > inside


def test_a_cluster_that_shrank_is_short_of_devices(plan):
    assert "devices" in rules(
        plan, ClusterSpec(name="1x4", groups=(specs.group(devices_per_node=4),))
    )


def test_less_memory_than_planned_is_found(plan):
    small = ClusterSpec(name="small", groups=(specs.group(nodes=4, memory_bytes=16 * specs.GIB),))
    assert "memory" in rules(edited(plan, tp=1), small)


def test_a_context_the_cache_cannot_hold_is_found(plan):
    data = edited(plan, tp=1).model_dump(mode="json")
    data["pools"][0]["engine_args"]["max_model_len"] = 10_000_000
    assert "kv_below_context" in rules(Plan.model_validate(data))


def test_engine_arguments_must_follow_the_layout(plan):
    data = edited(plan, tp=2).model_dump(mode="json")
    data["pools"][0]["engine_args"]["tensor_parallel_size"] = 4
    assert "engine_args" in rules(Plan.model_validate(data))


def test_an_edited_layout_makes_the_expectation_stale(plan):
    data = plan.model_dump(mode="json")
    data["pools"][0]["expected"]["tpot_s"] *= 2
    assert "stale_expectation" in rules(Plan.model_validate(data))


def test_another_device_is_bad_input(plan):
    other = ClusterSpec(name="other", groups=(specs.group(name="L40S"),))
    with pytest.raises(InputError, match="made for"):
        check_plan(plan, {"main": specs.dense()}, other)


def test_the_group_is_that_of_the_plan_s_size(plan):
    small, large = specs.group(nodes=1), specs.group(nodes=4)
    assert group_of(plan, ClusterSpec(name="mixed", groups=(small, large))) == large
    assert group_of(plan, ClusterSpec(name="shrunk", groups=(small,))) == small


def test_several_groups_of_other_sizes_are_ambiguous(plan):
    groups = (specs.group(nodes=1), specs.group(nodes=2))
    with pytest.raises(InputError, match="has 1x8, 2x8 of it"):
        group_of(plan, ClusterSpec(name="mixed", groups=groups))
