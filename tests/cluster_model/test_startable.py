"""Which plans are refused where they leave our hands, and which are taken on trust."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.errors import InputError
from cluster.model.plan import Plan, parse_plan
from cluster.model.startable import must_start, unstartable

H200 = {"spec": "1x8xH200", "device": "h200", "nodes": 1, "devices_per_node": 8}


def plan_of(
    *, model: str = "smollm2-135m-instruct", cluster: dict[str, Any] = H200, **degrees: int
) -> Plan:
    """One pool; `degrees` as its layout and its engine's arguments say them."""
    document = {
        "cluster": cluster,
        "workload": {"isl": 64, "osl": 32},
        "slo": {},
        "pools": [
            {
                "name": "main",
                "model": {
                    "name": model,
                    "source": model,
                    "params": 1,
                    "weight_bytes": 1,
                    "max_context": 8192,
                },
                "layout": degrees,
                "replicas": {},
                "engine_args": {
                    "tensor_parallel_size": degrees.get("tp", 1),
                    "pipeline_parallel_size": degrees.get("pp", 1),
                },
            }
        ],
    }
    return parse_plan(json.dumps(document), source="test")


def edited(plan: Plan, **arguments: int) -> Plan:
    """With other engine arguments."""
    (pool,) = plan.pools
    changed = pool.model_copy(update={"engine_args": {**pool.engine_args, **arguments}})
    return plan.model_copy(update={"pools": [changed]})


@pytest.mark.parametrize("degrees", [{}, {"tp": 3, "moe_tp": 3}, {"pp": 5}])
def test_what_the_model_can_be_cut_by_passes(degrees: dict[str, int]) -> None:
    assert unstartable(plan_of(**degrees)) is None


@pytest.mark.parametrize(
    ("degrees", "told"),
    [
        ({"tp": 7, "moe_tp": 7}, "9 attention heads do not split over tp = 7"),
        ({"tp": 3}, "they are the same devices"),
        ({"tp": 9, "moe_tp": 9}, "need 9 devices"),
        ({"pp": 31}, "31"),
    ],
)
def test_what_it_cannot_be_cut_by_is_refused(degrees: dict[str, int], told: str) -> None:
    with pytest.raises(InputError) as refused:
        must_start(plan_of(**degrees))
    words = str(refused.value)
    assert "pool 'main'" in words and told in words
    assert "Fix: " in words and "shardwise check" in words


def test_arguments_that_say_other_degrees_are_refused() -> None:
    with pytest.raises(InputError, match=r"tensor_parallel_size is 3, its layout says tp = 1"):
        must_start(edited(plan_of(), tensor_parallel_size=3))


def test_a_batch_of_the_users_own_passes() -> None:
    assert unstartable(edited(plan_of(), max_num_seqs=7, max_num_batched_tokens=777)) is None


def test_what_only_costs_passes() -> None:
    """TP over two nodes is slow, and asked for with --cross-domain-tp."""
    two = {**H200, "spec": "2x2xH200", "nodes": 2, "devices_per_node": 2}
    assert unstartable(plan_of(model="llama-3.1-8b", cluster=two, tp=4, moe_tp=4)) is None


def test_a_model_that_is_out_of_reach_is_taken_on_trust() -> None:
    assert unstartable(plan_of(model="org/elsewhere", tp=7, moe_tp=7)) is None


def test_a_device_that_is_out_of_reach_is_taken_on_trust() -> None:
    own = {**H200, "spec": "clusters/own.yaml", "device": "own-chip"}
    assert unstartable(plan_of(cluster=own, tp=7, moe_tp=7)) is None
