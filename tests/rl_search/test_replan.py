from __future__ import annotations

import math
from dataclasses import replace

import pytest

from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from rl_search.planner import make_plan
from rl_search.question import Priority
from rl_search.replan import Found, Worth, find, seen_workload
from rl_search.request import PlanRequest

MODEL = get_model("llama-3.1-8b")
CLUSTER = parse_cluster("1x8xH100")
CONTEXT = 20_000
ASKED = PlanRequest(
    model=MODEL,
    cluster=CLUSTER,
    workload=Workload(isl=512, osl=512, rate=20.0),
    priority=Priority.THROUGHPUT,
    slo=Slo(ttft_s=1.0, tpot_s=0.02),
    served_name="served",
    max_model_len=CONTEXT,
    min_replicas=1,
)


@pytest.fixture(scope="module")
def plan():
    found = make_plan(ASKED).plan
    main = found.main
    args = main.engine_args | {"reasoning_parser": "qwen3"}
    return found.model_copy(update={"pools": (main.model_copy(update={"engine_args": args}),)})


def search(plan, workload: Workload) -> Found:
    return find(
        plan, CLUSTER.groups[0], model=MODEL, light=None, workload=workload, context=CONTEXT
    )


def test_the_planned_workload_finds_the_plan_again(plan) -> None:
    found = search(plan, ASKED.workload)
    assert found.same_layout
    assert found.gain == pytest.approx(0.0)
    assert not found.worth_a_move(min_gain=0.0)


def test_another_workload_finds_what_the_planner_finds_for_it(plan) -> None:
    workload = Workload(isl=12_000, osl=64, rate=4.0)
    found = search(plan, workload)
    asked = make_plan(replace(ASKED, workload=workload, priority=Priority.THROUGHPUT)).plan.main
    assert found.plan.main.layout == asked.layout
    assert found.plan.main.expected == asked.expected
    assert (found.plan.workload.isl, found.plan.workload.osl) == (12_000, 64)
    assert found.gain > 0.0
    assert found.new.ttft_s <= 1.0


def test_name_context_and_what_the_operator_added_stay(plan) -> None:
    found = search(plan, Workload(isl=12_000, osl=64)).plan.main
    assert (found.model.name, found.model.source) == ("served", plan.main.model.source)
    assert found.engine_args["max_model_len"] == CONTEXT
    assert found.engine_args["reasoning_parser"] == "qwen3"
    assert found.engine_args["tensor_parallel_size"] == found.layout.tp


def test_what_was_seen_becomes_whole_tokens_within_the_context(plan) -> None:
    def seen(prompt: float, output: float, rate: float) -> Workload:
        return seen_workload(
            plan, prompt_tokens=prompt, output_tokens=output, requests_per_s=rate, context=1000
        )

    assert seen(99.6, 0.2, 3.0) == Workload(isl=100, osl=1, rate=3.0)
    assert seen(998.7, 40.0, 0.0) == Workload(isl=999, osl=1, rate=None)


def worth(layout: str, goodput_rps: float, *, devices: int = 1) -> Worth:
    return Worth(layout=layout, devices=devices, ttft_s=1.0, tpot_s=0.1, goodput_rps=goodput_rps)


@pytest.mark.parametrize(
    ("old", "new", "gain", "moves"),
    [
        (worth("TP1", 1.0), worth("TP2", 2.1, devices=2), 0.05, False),
        (worth("TP1", 1.0), worth("TP2", 2.4, devices=2), 0.2, True),
        (worth("TP1", 0.0), worth("TP2", 0.1, devices=2), math.inf, True),
        (worth("TP1", 0.0), worth("TP2", 0.0), 0.0, False),
        (worth("TP1", 1.0), worth("TP1", 2.0), 1.0, False),
    ],
)
def test_a_move_is_worth_a_tenth_or_bounds_that_were_missed(plan, old, new, gain, moves) -> None:
    found = Found(plan=plan, old=old, new=new)
    assert found.gain == pytest.approx(gain)
    assert found.worth_a_move(min_gain=0.1) is moves
