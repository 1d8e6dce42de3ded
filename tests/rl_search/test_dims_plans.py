"""Dims from the search to the plan file, and what refuses or warns about them after it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cli.dims_report import dims_lines
from cluster.costmodel.sharding import read, walks
from cluster.costmodel.sharding_states import Experts
from cluster.errors import InputError, UnknownNameError
from cluster.export import FORMATS, SAY_DIMS, export
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Dim
from cluster.model.plan import Plan, parse_plan
from cluster.model.rules import Severity, check_layouts
from cluster.model.workload import Slo, Workload
from rl_search.checks import check_plan
from rl_search.enumeration import Space, SpaceOptions, expand, strategies
from rl_search.exact import Evaluated, evaluate
from rl_search.planner import PlanResult, make_plan
from rl_search.question import Priority, Question, score
from rl_search.request import PlanRequest

MODEL, CLUSTER = get_model("llama-3.1-70b"), parse_cluster("8xH100")


def request(space: Space) -> PlanRequest:
    return PlanRequest(
        model=MODEL,
        cluster=CLUSTER,
        cluster_text="8xH100",
        workload=Workload(isl=8000, osl=200),
        slo=Slo(ttft_s=6.0, tpot_s=0.08),
        priority=Priority.THROUGHPUT,
        space=space,
    )


@pytest.fixture(scope="module")
def free() -> PlanResult:
    return make_plan(request(Space.ANY))


@pytest.fixture(scope="module")
def fixed() -> PlanResult:
    return make_plan(request(Space.VLLM))


@pytest.fixture(scope="module")
def evaluated() -> Evaluated:
    return evaluate(
        Question(
            model=MODEL,
            group=CLUSTER.groups[0],
            workload=Workload(isl=8000, osl=200),
            slo=Slo(ttft_s=6.0, tpot_s=0.08),
            options=SpaceOptions(space=Space.ANY),
            headroom=0.2,
            max_model_len=8200,
        )
    )


def test_the_vllm_space_has_no_dims_and_stands_for_itself(fixed):
    assert all(row.layout.dims == () and row.default_dims is None for row in fixed.rows)
    assert fixed.strategies == fixed.considered
    assert fixed.plan.main.layout.dims == {}


def test_the_any_space_is_at_least_as_good_under_every_priority(evaluated):
    plain = np.array([not evaluated.table.row(i).dims for i in range(len(evaluated.table))])
    for priority in Priority:
        values = score(evaluated.estimates, priority)
        assert values[evaluated.ok].max() >= values[evaluated.ok & plain].max()
    assert (~plain).any()


def test_rejections_account_for_rows_with_dims_too(evaluated):
    removed = sum(entry.count for entry in evaluated.rejections)
    assert evaluated.considered == int(evaluated.ok.sum()) + removed


def test_rows_with_dims_keep_the_limits_and_say_what_they_came_from(evaluated):
    made, table = evaluated.estimates, evaluated.table
    for index in range(len(table)):
        row = table.row(index)
        if not row.dims:
            continue
        read(MODEL, row.dims)
        before = table.under_default_dims(index)
        assert before is not None
        assert table.row(before) == replace(row, dims=())
        assert made.memory.max_sequences[index] >= row.max_num_seqs
        assert made.kv_capacity_tokens[index] >= 8200 * row.dp


def test_strategies_count_every_choice_of_every_layout(evaluated):
    group = CLUSTER.groups[0]
    every = expand(strategies(MODEL, group, evaluated.question.options), SpaceOptions())
    obeying = every.take(check_layouts(MODEL, group, every).ok)
    # These need no dims to be told off.
    small = (obeying.max_num_seqs < obeying.pp) | (
        obeying.max_num_batched_tokens < obeying.max_num_seqs
    )
    assert small.any()
    cut = (obeying.tp > 1) & ~small
    expected = len(every) + int(cut.sum()) * (walks(MODEL, Experts.CUT) - 1)
    assert evaluated.strategies == expected


def test_the_plan_carries_the_dims_and_says_what_they_gain(free, fixed):
    best, plain = free.rows[0], fixed.rows[0]
    assert best.layout.dims
    assert free.plan.main.layout.dims == dict(best.layout.dims)
    assert parse_plan(free.plan.dumps(), source="test") == free.plan
    assert (
        score(best.estimates, Priority.THROUGHPUT)[best.index]
        > (score(plain.estimates, Priority.THROUGHPUT)[plain.index])
    )
    text = "\n".join(dims_lines(best))
    assert "residual stream cut by tokens" in text
    assert "0 all-reduce (160 before)" in text
    assert "gain over the default dims: TPOT" in text
    assert "vLLM takes no per-operator dims" in text
    assert not list(dims_lines(plain))


def test_a_check_warns_with_the_cost_and_estimates_under_the_dims(free):
    findings = check_plan(free.plan, {"main": MODEL}, CLUSTER)
    found = {finding.rule: finding for finding in findings}
    assert found.keys() == {"dims_not_served"}  # no stale expectation either
    assert found["dims_not_served"].severity is Severity.WARNING
    expected = free.plan.main.expected
    assert expected is not None
    assert f"instead of {expected.tpot_s * 1e3:.2f} ms" in found["dims_not_served"].cost


def edited(plan: Plan, dims: dict[str, Dim]) -> Plan:
    layout = plan.main.layout.model_copy(update={"dims": dims})
    return plan.model_copy(update={"pools": (plan.main.model_copy(update={"layout": layout}),)})


def test_dims_of_no_operator_are_an_error_and_not_ignored(free):
    with pytest.raises(UnknownNameError, match="ffn_up"):
        check_plan(edited(free.plan, {"ffn_upp": Dim.ROW}), {"main": MODEL}, CLUSTER)


def test_a_check_sees_what_whole_weights_take(free):
    everything = ("attention_core", "attention_out", "ffn_down", "ffn_up", "qkv")
    whole = edited(free.plan, dict.fromkeys(everything, Dim.REPLICATED))
    assert "batch_beyond_memory" in {f.rule for f in check_plan(whole, {"main": MODEL}, CLUSTER)}


@pytest.mark.parametrize("name", FORMATS)
def test_no_export_loses_the_dims_silently(free, fixed, name):
    assert export(fixed.plan, name)
    if name in SAY_DIMS:
        assert export(free.plan, name)
        return
    with pytest.raises(InputError, match=f"has dims of its own.*{name} cannot say"):
        export(free.plan, name)
