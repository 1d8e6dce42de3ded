from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.memory import memory_table
from cluster.costmodel.sharded_memory import holdings, sharded_memory
from cluster.costmodel.sharded_steps import Sharding, expert_kinds, sharded_parts
from cluster.costmodel.sharding import read, recipe, slots, spelt, trellises, walks
from cluster.costmodel.sharding_states import (
    Collective,
    Cut,
    Exchange,
    Experts,
    State,
    Unit,
    convert,
    joined,
)
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.errors import InputError, UnknownNameError
from cluster.model.catalogue import get_model, model_names
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Dim, Dims, Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from tests.costmodel import specs

GROUP = parse_cluster("4x8xH200").groups[0]
COEFFICIENTS = default_coefficients()
COLUMN, ROW, WHOLE = Dim.COLUMN, Dim.ROW, Dim.REPLICATED
DENSE, MLA = get_model("llama-3.1-8b"), get_model("deepseek-v3")
MOE = get_model("qwen3-30b-a3b")
GATHER, REDUCE, SCATTER = (
    Collective.ALL_GATHER,
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
)


def layouts(model: ModelSpec, *, tps: tuple[int, ...] = (1, 2, 8, 16)) -> LayoutTable:
    rows = [
        Layout(
            tp=tp,
            dp=dp,
            pp=pp,
            moe_tp=tp * dp // ep,
            moe_ep=ep,
            max_num_seqs=64 * dp,
            max_num_batched_tokens=chunk,
        )
        for tp in tps
        for dp in ((1, 4) if model.experts else (1,))
        for pp in (1, 3)
        for ep in ((1, 2, 4) if model.experts else (1,))
        for chunk in (512, 8192)
        if (tp * dp) % ep == 0
    ]
    return LayoutTable.from_layouts(rows)


def case_of(model: ModelSpec, table: LayoutTable, backend: str = "vllm") -> Case:
    return make_case(model, GROUP, table, COEFFICIENTS, backend=backend)


def sharding_of(model: ModelSpec, table: LayoutTable, dims: Dims) -> Sharding:
    recipes = [recipe(model, dims, experts) for experts in Experts]
    return Sharding.of(recipes, expert_kinds(model, table))


def load_of(n: int, *, decode: float, prefill: float) -> StepLoad:
    def column(value: float) -> np.ndarray:
        return np.full(n, value)

    return StepLoad(
        decode=column(decode),
        context=column(4000.0),
        prefill=column(prefill),
        prompt=column(4000.0),
        routed=column(decode + prefill),
        queries=column(1.0),
        cached=column(0.0),
        offloaded=column(1e9),
    )


LOADS = ((64.0, 0.0), (1.0, 0.0), (50.0, 2000.0), (0.0, 8000.0))


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
@pytest.mark.parametrize("name", model_names())
def test_megatron_costs_what_the_step_says(name, backend):
    model = get_model(name)
    table = layouts(model)
    case, sharding = case_of(model, table, backend), sharding_of(model, table, ())
    for decode, prefill in LOADS:
        load = load_of(len(table), decode=decode, prefill=prefill)
        plain = step_parts(case, load, COEFFICIENTS)
        made = sharded_parts(case, sharding, load, COEFFICIENTS)
        assert plain.keys() == made.keys()
        for part, seconds in plain.items():
            np.testing.assert_allclose(made[part], seconds, rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("name", model_names())
def test_megatron_holds_what_the_memory_table_says(name):
    model = get_model(name)
    table = layouts(model)
    grid, sharding = case_of(model, table).grid, sharding_of(model, table, ())
    plain = memory_table(model, GROUP.device, grid, table, context=4500, headroom=0.2)
    made = sharded_memory(
        model,
        GROUP.device,
        grid,
        table,
        megatron=plain,
        sharding=sharding,
        default=sharding,
        context=4500,
    )
    for field in ("weights", "activations", "sequence_bytes", "kv_budget", "max_sequences"):
        np.testing.assert_array_equal(getattr(made, field), getattr(plain, field))
    held = holdings(model, grid, context=4500)
    np.testing.assert_allclose(held.cores[0].sum(axis=0), plain.sequence_bytes, rtol=1e-12)
    # Without the vocabulary, the weights are the sum of what the operators hold.
    cut = np.take_along_axis(held.operators, sharding.cuts[None], axis=0)[0].sum(axis=0)
    vocabulary = plain.weights - cut
    ends = model.embedding.weight_bytes / grid.tp
    assert (vocabulary > 0.99 * ends).all()
    assert (vocabulary < 2.01 * ends).all()


def dims_of(model: ModelSpec) -> st.SearchStrategy[Dims]:
    """Any assignment, named as a layout names it."""

    def named(drawn: tuple[list[Dim], bool]) -> Dims:
        chosen, tokens = drawn
        return spelt(model, dict(zip(slots(model), chosen, strict=True)), tokens_cut=tokens)

    columns = [st.sampled_from(slot.dims) for slot in slots(model)]
    return st.tuples(st.tuples(*columns).map(list), st.booleans()).map(named)


@pytest.mark.parametrize("model", [DENSE, MOE, MLA], ids=["gqa", "moe", "mla"])
def test_one_rank_has_nothing_to_choose(model):
    table = layouts(model, tps=(1,))
    table = table.take(np.asarray(table.dp == 1) & np.asarray(table.moe_tp == 1))
    case, load = case_of(model, table), load_of(len(table), decode=16.0, prefill=100.0)
    plain = total(step_parts(case, load, COEFFICIENTS))

    @given(dims_of(model))
    @settings(max_examples=25, deadline=None)
    def unchanged(dims: Dims) -> None:
        made = sharded_parts(case, sharding_of(model, table, dims), load, COEFFICIENTS)
        np.testing.assert_allclose(total(made), plain, rtol=1e-12)

    unchanged()


@pytest.mark.parametrize("model", [DENSE, MOE, MLA], ids=["gqa", "moe", "mla"])
def test_names_say_the_assignment_they_are_made_from(model):
    @given(dims_of(model))
    @settings(max_examples=50, deadline=None)
    def same(dims: Dims) -> None:
        chosen, tokens_cut = read(model, dims)
        assert spelt(model, chosen, tokens_cut=tokens_cut) == dims
        for experts in Experts:
            made = recipe(model, dims, experts)
            assert made.tokens_cut == tokens_cut
            assert all(count > 0 for _, count in made.exchanges)

    same()


def test_a_conversion_is_at_most_one_collective():
    for before in State:
        for after in State:
            moved = convert(before, after, 7)
            assert len(moved) <= 1
            assert bool(moved) == (before not in (after, State.FULL) and after is not State.PARTIAL)
    assert convert(State.PARTIAL, State.FULL, 7) == (Exchange(REDUCE, 7),)
    assert convert(State.PARTIAL, State.TOKENS, 7) == (Exchange(SCATTER, 7),)
    assert convert(State.TOKENS, State.FULL, 7) == (Exchange(GATHER, 7),)
    assert convert(State.SHARDED, State.FULL, 7) == (Exchange(GATHER, 7),)


def test_a_sum_of_branches_owes_what_either_owes():
    assert joined(State.FULL, State.SHARDED) is State.SHARDED
    assert joined(State.PARTIAL, State.FULL) is State.PARTIAL
    assert joined(State.TOKENS, State.SHARDED) is State.PARTIAL
    assert joined(None, State.TOKENS) is State.TOKENS


def counted(model: ModelSpec, dims: Dims, experts: Experts = Experts.CUT) -> dict[Exchange, int]:
    return dict(recipe(model, dims, experts).exchanges)


def test_collectives_follow_from_the_dims():
    layers, hidden, wide = 32, 4096, 14336
    assert counted(DENSE, ()) == {Exchange(REDUCE, hidden): 2 * layers}
    # The second operator along its output too: gathers before and after it, no reduction.
    assert counted(DENSE, (("ffn_down", COLUMN),)) == {
        Exchange(REDUCE, hidden): layers,
        Exchange(GATHER, wide): layers,
        Exchange(GATHER, hidden): layers,
    }
    # The first along its input: its sums are owed before the activation.
    assert counted(DENSE, (("ffn_up", ROW),)) == {
        Exchange(REDUCE, hidden): 2 * layers,
        Exchange(SCATTER, 2 * wide): layers,
    }
    assert counted(DENSE, (("ffn_down", WHOLE), ("ffn_up", WHOLE))) == {
        Exchange(REDUCE, hidden): layers
    }
    assert counted(DENSE, (("residual", ROW),)) == {
        Exchange(SCATTER, hidden): 2 * layers,
        Exchange(GATHER, hidden): 2 * layers,
    }
    # Whole weights on a share of the tokens: the feed-forward needs no collective at all.
    assert counted(DENSE, (("ffn_down", WHOLE), ("ffn_up", WHOLE), ("residual", ROW))) == {
        Exchange(SCATTER, hidden): layers,
        Exchange(GATHER, hidden): layers,
    }
    everything = ("attention_core", "attention_out", "ffn_down", "ffn_up", "qkv")
    assert counted(DENSE, tuple((name, WHOLE) for name in everything)) == {}


def test_latents_are_gathered_narrow():
    found = counted(MLA, (("residual", ROW),))
    assert found[Exchange(GATHER, 2112)] == 61  # not the 7,168 features of the stream
    assert Exchange(REDUCE, 7168) not in found


def test_a_dim_may_be_of_one_kind_of_layers():
    found = counted(MLA, (("dense:latent_down", ROW),))
    assert found[Exchange(REDUCE, 2112)] == 3
    chosen, _ = read(MLA, (("dense:latent_down", ROW), ("latent_down", COLUMN)))
    dims = {slot.kind: dim for slot, dim in chosen.items() if slot.name == "latent_down"}
    assert dims == {0: ROW, 1: COLUMN}


def test_experts_on_other_ranks_keep_the_dims_of_their_grid():
    dims = (("expert_down", COLUMN), ("expert_up", WHOLE))
    assert counted(MOE, dims, Experts.SPREAD) == counted(MOE, (), Experts.SPREAD)
    assert counted(MOE, dims, Experts.EXCHANGED) == counted(MOE, (), Experts.EXCHANGED)
    assert Exchange(GATHER, 768, Unit.VISIT) in counted(
        MOE, (("expert_down", COLUMN),), Experts.CUT
    )


def test_norms_over_all_heads_are_reduced_where_heads_are_cut():
    model = get_model("minimax-m2.5")
    norm = Exchange(REDUCE, 1, Unit.NORM)
    assert counted(model, ())[norm] == 2 * 62
    whole = (("attention_core", WHOLE), ("qkv", WHOLE))
    assert norm not in counted(model, whole)


def test_whole_weights_and_cores_are_held_by_every_rank():
    table = LayoutTable.from_layouts([Layout(tp=8, moe_tp=8, max_num_batched_tokens=512)])
    grid = case_of(DENSE, table).grid
    plain = memory_table(DENSE, GROUP.device, grid, table, context=4500, headroom=0.2)

    def held(*names: str):
        return sharded_memory(
            DENSE,
            GROUP.device,
            grid,
            table,
            megatron=plain,
            sharding=sharding_of(DENSE, table, tuple((name, WHOLE) for name in names)),
            default=sharding_of(DENSE, table, ()),
            context=4500,
        )

    down = 14336 * 4096 * 2.0 * 32  # bytes of one operator in all layers
    assert held("ffn_down").weights - plain.weights == pytest.approx(down * 7 / 8)
    assert held("attention_core").sequence_bytes == pytest.approx(8 * plain.sequence_bytes)
    # The widest operator was ffn_down, and is ffn_up.
    wider = held("ffn_up").activations - plain.activations
    assert wider == pytest.approx(512 * 2.0 * ((4096 + 28672) - (14336 + 4096 / 8)))


def test_whole_operators_do_all_the_work_and_token_shares_their_share():
    table = LayoutTable.from_layouts([Layout(tp=8, moe_tp=8)])
    case, load = case_of(DENSE, table), load_of(1, decode=0.0, prefill=8192.0)

    def ffn(dims: Dims) -> float:
        return float(
            sharded_parts(case, sharding_of(DENSE, table, dims), load, COEFFICIENTS)["ffn"][0]
        )

    whole = (("ffn_down", WHOLE), ("ffn_up", WHOLE))
    assert ffn(whole) == pytest.approx(8 * ffn(()), rel=0.1)  # compute-bound: by the operations
    assert ffn((*whole, ("residual", ROW))) == pytest.approx(ffn(()), rel=0.15)


def test_a_model_of_unknown_operators_is_left_as_it_is():
    model = specs.dense()
    assert slots(model) == ()
    assert trellises(model, Experts.CUT, tokens_cut=False) == ()
    assert counted(model, ()) == {Exchange(REDUCE, 4096): 64}
    assert recipe(model, (), Experts.CUT).cuts[0] is Cut.COLUMN


def test_the_space_is_the_product_of_the_choices():
    assert walks(DENSE, Experts.CUT) == 2 * 3**4 * 2  # four operators, the core, the stream
    assert walks(MOE, Experts.CUT) == 9 * walks(MOE, Experts.SPREAD)
    assert walks(MLA, Experts.SPREAD) == walks(MLA, Experts.EXCHANGED)


@pytest.mark.parametrize(
    ("dims", "error", "message"),
    [
        ((("ffn_op", ROW),), UnknownNameError, "ffn_up"),
        ((("moe:ffn_up", ROW),), UnknownNameError, "fused operator"),
        ((("kv_up", ROW),), InputError, "kv_up cannot be cut along '0'"),
        ((("attention_core", ROW),), InputError, "attention_core"),
        ((("residual", COLUMN),), InputError, "residual cannot be cut along '1'"),
    ],
)
def test_dims_that_are_none_are_refused(dims, error, message):
    with pytest.raises(error, match=message):
        read(MLA, dims)
