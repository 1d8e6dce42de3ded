"""What is said of dims is what the recipes and estimates behind it say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cluster.costmodel.sharded_steps import sharded_parts
from cluster.costmodel.sharding import RESIDUAL, recipe, slots, spelt
from cluster.costmodel.sharding_states import Collective, Exchange, Experts, Unit
from cluster.costmodel.steps import total
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Dim, Layout, LayoutTable
from cluster.model.workload import Slo, Workload
from rl_search.dims_gains import experts_of, gains
from rl_search.enumeration import Space, SpaceOptions
from rl_search.evaluator import estimate_own
from rl_search.question import Question
from rl_search.words import activation_bytes, describe_dims, sentences, traffic
from tests.costmodel import specs

DENSE, MOE = get_model("llama-3.1-8b"), get_model("qwen3-30b-a3b")
GROUP = parse_cluster("2x8xH100").groups[0]
CUT = Layout(tp=8, moe_tp=8, max_num_seqs=32)
SPREAD = Layout(tp=8, moe_tp=2, moe_ep=4, max_num_seqs=32)
EXCHANGED = Layout(tp=8, dp=2, moe_tp=1, moe_ep=16, max_num_seqs=32)
STREAM = ((RESIDUAL, Dim.ROW),)


def question(model=MOE, **changes) -> Question:
    base = Question(
        model=model,
        group=GROUP,
        workload=Workload(isl=2000, osl=300),
        slo=Slo(tpot_s=0.1),
        options=SpaceOptions(space=Space.ANY),
        headroom=0.2,
        max_model_len=2300,
    )
    return replace(base, **changes)


@pytest.mark.parametrize("layout", [CUT, SPREAD, EXCHANGED])
def test_the_exchanges_of_all_operators_are_those_of_the_recipe(layout):
    rng, own = np.random.default_rng(0), slots(MOE)
    for _ in range(40):
        chosen = {slot: slot.dims[rng.integers(len(slot.dims))] for slot in own}
        dims = spelt(MOE, chosen, tokens_cut=bool(rng.integers(2)))
        lines = describe_dims(MOE, replace(layout, dims=dims))
        counted: Counter[Exchange] = Counter()
        for line in lines:
            for exchange in line.exchanges:
                counted[exchange] += line.layers
        assert counted == dict(recipe(MOE, dims, experts_of(MOE, layout)).exchanges)


def test_megatrons_own_dims_differ_in_nothing():
    lines = describe_dims(DENSE, CUT)
    assert not any(line.differs for line in lines)
    assert all(line.exchanges == line.megatron_exchanges for line in lines)
    (text,) = sentences(DENSE, CUT)
    assert "as in the Megatron scheme" in text
    assert "two all-reduces a" in text


def test_one_rank_has_no_dims_to_choose():
    assert describe_dims(DENSE, Layout()) == ()
    assert sentences(DENSE, Layout()) == (
        "TP1: every operator is whole on its rank, there are no dims to choose.",
    )


def test_operators_nobody_knows_are_left_as_they_are():
    (text,) = sentences(specs.dense(), CUT)
    assert "without a choice of dims" in text


def test_a_stream_cut_by_tokens_gathers_and_scatters_the_same_bytes():
    text, stream = sentences(DENSE, replace(CUT, dims=STREAM))
    # An all-reduce of h bf16 features moves 2 (7/8) 2 h bytes; there are two a layer.
    assert DENSE.hidden == 4096
    assert "operators as in the Megatron scheme" in text
    assert (
        "two all-gathers and two reduce-scatters a layer instead of two all-reduces "
        f"(as many bytes, {2 * 2 * 7 * 2 * 4096 // 8:,} a token of each rank)"
    ) in text
    assert stream.startswith("Residual stream cut by tokens (Megatron: whole)")


def test_an_operator_cut_otherwise_is_named_with_megatrons_dim():
    layout = replace(CUT, dims=(("ffn_down", Dim.COLUMN),))
    (line,) = (line for line in describe_dims(DENSE, layout) if line.differs)
    assert (line.operator, line.dim, line.megatron) == ("ffn_down", Dim.COLUMN, Dim.ROW)
    text = sentences(DENSE, layout)[0]
    assert "ffn_down along dim 1 (Megatron: along dim 0): " in text
    assert "one all-reduce and two all-gathers a layer instead of two all-reduces" in text
    # 14,336 features are gathered before it, 4,096 after it, and no 4,096 summed.
    assert f"({(14336 + 4096 - 2 * 4096) * 2 * 7 // 8:,} bytes a token of each rank more)" in text


def test_bytes_by_unit_and_width():
    exchanges = [
        (Exchange(Collective.ALL_REDUCE, 100), 3),
        (Exchange(Collective.ALL_GATHER, 100, Unit.VISIT), 1),
        (Exchange(Collective.ALL_REDUCE, 1, Unit.NORM), 1),
    ]
    made = traffic(exchanges, MOE, tp=4, width=4.0)
    assert made.counts == {Collective.ALL_REDUCE: 4, Collective.ALL_GATHER: 1}
    assert made.bytes_[Collective.ALL_REDUCE] == 3 * 2 * 0.75 * 400 + 2 * 0.75 * 4
    assert made.bytes_[Collective.ALL_GATHER] == 0.75 * 400 * MOE.experts_per_token
    assert made.total == sum(made.bytes_.values())
    assert activation_bytes(GROUP.device) == 2.0


@pytest.mark.parametrize("layout", [SPREAD, EXCHANGED])
def test_dims_of_experts_that_a_grid_decides_are_no_choice(layout):
    named = replace(layout, dims=(("expert_up", Dim.ROW),))
    assert not any(line.differs for line in describe_dims(MOE, named))
    grid = f"TP{layout.moe_tp} x EP{layout.moe_ep}"
    assert any(f"their grid, {grid}, decides" in text for text in sentences(MOE, named))
    assert experts_of(MOE, layout) is not Experts.CUT


def test_dims_of_experts_cut_over_all_ranks_are_one():
    layout = replace(CUT, dims=(("expert_up", Dim.ROW), ("expert_down", Dim.COLUMN)))
    text = sentences(MOE, layout)[0]
    assert "expert_up along dim 0 (Megatron: along dim 1), expert_down along dim 1" in text


@pytest.mark.parametrize("layout", [CUT, EXCHANGED])
def test_gains_are_the_difference_of_two_estimates(layout):
    asked, layout = question(), replace(layout, dims=STREAM)
    found = gains(asked, layout)
    made = estimate_own(asked, LayoutTable.from_layouts([layout, replace(layout, dims=())]))
    assert found.tpot_s == pytest.approx(float(made.tpot_s[0]))
    assert found.megatron_tpot_s == pytest.approx(float(made.tpot_s[1]))
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.tpot_s)
    assert sum(part.megatron_s for part in found.parts) == pytest.approx(found.megatron_tpot_s)
    changes = [abs(part.gained_s) for part in found.parts]
    assert changes == sorted(changes, reverse=True)
    assert found.megatron_fits
    said = sentences(MOE, layout, gained=found)
    assert (
        f"({found.tokens_per_s_per_device / found.megatron_tokens_per_s_per_device - 1:+.1%})"
        in (said[-1])
    )
    assert any("of a decode step exchanges take" in text for text in said)


@pytest.mark.parametrize(
    "dims",
    [STREAM, (("attention_out", Dim.COLUMN),), (*STREAM, ("router", Dim.ROW))],
)
@pytest.mark.parametrize("layout", [CUT, EXCHANGED])
def test_operators_account_for_what_a_step_gains(layout, dims):
    asked, layout = question(), replace(layout, dims=tuple(sorted(dims)))
    table = LayoutTable.from_layouts([layout, replace(layout, dims=())])
    made = estimate_own(asked, table)
    setting = asked.setting()
    steps = setting.steps(table, made)
    case, loads = steps.case, steps.loads
    found = gains(asked, layout)
    for load, name in zip(loads, ("decode", "mixed"), strict=True):
        step_s = total(sharded_parts(case, setting.sharding(table), load, setting.coefficients))
        gained = sum(getattr(operator, name).gained_s for operator in found.operators)
        # Heads, hosts and experts' exchanges follow the batches, which differ by a little.
        assert gained == pytest.approx(float(step_s[1] - step_s[0]), rel=0.02, abs=2e-6)


def test_nothing_is_gained_by_megatrons_dims():
    found = gains(question(), CUT)
    assert all(part.gained_s == 0.0 for part in found.parts)
    assert all(abs(operator.decode.gained_s) < 1e-12 for operator in found.operators)
    assert not any("Against Megatron" in text for text in sentences(MOE, CUT, gained=found))


def test_a_batch_that_fits_under_its_own_dims_only_is_compared_with_a_smaller_one():
    # Megatron's scheme keeps the router of 128 experts whole on every rank.
    asked, layout = question(), replace(CUT, dims=(("router", Dim.COLUMN),))
    batches = [replace(layout, max_num_seqs=batch) for batch in range(900, 1100)]
    plain = [replace(each, dims=()) for each in batches]
    most, megatrons = (
        estimate_own(asked, LayoutTable.from_layouts(each)).memory.max_sequences
        for each in (batches, plain)
    )
    tight = next(
        each
        for each, own, other in zip(batches, most, megatrons, strict=True)
        if own >= each.max_num_seqs > other
    )
    found = gains(asked, tight)
    assert not found.megatron_fits
    assert "with the smaller batch that fits there" in sentences(MOE, tight, gained=found)[-1]
