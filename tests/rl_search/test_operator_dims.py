from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving, demand_of, estimate
from cluster.costmodel.service import step_loads
from cluster.costmodel.sharded_memory import holdings, sharded_memory
from cluster.costmodel.sharded_steps import expert_kinds, sharded_parts
from cluster.costmodel.sharding import slots, spelt
from cluster.costmodel.sharding_states import Experts
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Dim, Dims, Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload
from rl_search.dims_search import search_dims
from rl_search.estimate_rows import taken
from rl_search.operator_dims import (
    DIMS,
    Priced,
    Terms,
    Weights,
    fastest,
    megatron_s,
    named,
    weights_at,
)
from rl_search.sharded_estimate import ROUNDS, Setting, estimate_layouts, resharded

GROUP = parse_cluster("4x8xH200").groups[0]
DENSE, MOE = get_model("llama-3.1-8b"), get_model("qwen3-30b-a3b")
WORKLOAD = Workload(isl=2000, osl=300)


def layout_of(model: ModelSpec, **changes: int) -> Layout:
    layout = Layout(**{"tp": 8, "moe_tp": 8, "max_num_seqs": 32, **changes})  # type: ignore[arg-type]
    return layout if model.experts else replace(layout, moe_tp=layout.tp * layout.dp, moe_ep=1)


@cache
def assignments(model: ModelSpec) -> tuple[Dims, ...]:
    """All there are, by brute force."""
    own = slots(model)
    return tuple(
        spelt(model, dict(zip(own, chosen, strict=True)), tokens_cut=tokens)
        for chosen in product(*(slot.dims for slot in own))
        for tokens in (False, True)
    )


def as_rows(layout: Layout, dims: tuple[Dims, ...]) -> LayoutTable:
    return LayoutTable.from_layouts([replace(layout, dims=each) for each in dims])


def estimated(
    model: ModelSpec, table: LayoutTable, workload: Workload = WORKLOAD, serving: Serving = PLAIN
) -> tuple[Setting, EstimateTable]:
    setting = Setting.of(model, GROUP, workload, serving=serving)
    made = estimate(model, GROUP, table, workload, concurrency=table.max_num_seqs, serving=serving)
    return setting, made


Loads = tuple[StepLoad, StepLoad]


def objective(
    model: ModelSpec, table: LayoutTable, workload: Workload = WORKLOAD
) -> tuple[Setting, Weights, Loads, Terms]:
    setting, made = estimated(model, table, workload)
    case = setting.case(table)
    demand = demand_of(
        case.grid,
        workload,
        setting.serving,
        table,
        offered=made.concurrency,
        running=made.running,
    )
    weights, _ = weights_at(case, demand, made.state)
    loads = step_loads(case, demand, made.state.decoding)
    return setting, weights, loads, Priced.of(case, loads, setting.coefficients).terms(weights)


def walked_s(setting: Setting, table: LayoutTable, weights: Weights, loads: Loads) -> np.ndarray:
    """The objective of each row's own dims from the parts of its steps, not from the terms."""
    case, sharding = setting.case(table), setting.sharding(table)
    decode, mixed = (
        total(sharded_parts(case, sharding, load, setting.coefficients)) for load in loads
    )
    return weights.decode * decode + weights.mixed * mixed


def repeated(weights: Weights, loads: Loads, n: int) -> tuple[Weights, Loads]:
    def column(values: np.ndarray) -> np.ndarray:
        return np.full(n, values[0])

    decode, mixed = (
        replace(load, **{field.name: column(getattr(load, field.name)) for field in fields(load)})
        for load in loads
    )
    wide = Weights(decode=column(weights.decode), mixed=column(weights.mixed))
    return wide, (decode, mixed)


degrees = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([2, 4, 8, 16]),
        "pp": st.sampled_from([1, 2, 8]),
        "max_num_seqs": st.sampled_from([8, 32, 256, 1024]),
        "max_num_batched_tokens": st.sampled_from([256, 2048, 16384]),
    }
)
workloads = st.builds(
    Workload,
    isl=st.sampled_from([64, 2000, 16000]),
    osl=st.sampled_from([2, 300, 3000]),
    prefix_hit=st.sampled_from([0.0, 0.8]),
)


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_the_recursion_finds_what_brute_force_finds(model):
    dims = assignments(model)

    @given(degrees, workloads)
    @settings(max_examples=15, deadline=None)
    def equal(changes: dict[str, int], workload: Workload) -> None:
        layout = layout_of(model, **{**changes, "moe_tp": changes["tp"]})
        one = LayoutTable.from_layouts([layout])
        setting, weights, loads, terms = objective(model, one, workload)
        found = fastest(model, Experts.CUT, terms)
        rows = as_rows(layout, dims)
        seconds = walked_s(setting, rows, *repeated(weights, loads, len(rows)))
        default = seconds[dims.index(())]
        gain = megatron_s(model, Experts.CUT, terms)[0] - found.seconds[0]
        assert gain >= -1e-15
        assert default - seconds.min() == pytest.approx(gain, rel=1e-6, abs=1e-9 * default)
        _, (chosen,) = named(model, found.codes)
        assert seconds[dims.index(chosen)] == pytest.approx(seconds.min(), rel=1e-9)

    equal()


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-5", "llama-4-maverick", "qwen3.5-397b-a17b"])
def test_no_sampled_assignment_of_a_large_model_is_faster(name):
    model = get_model(name)
    rows = [
        layout_of(model, tp=tp, dp=dp, moe_tp=tp * dp // ep, moe_ep=ep, max_num_seqs=32 * dp)
        for tp in (2, 8)
        for dp, ep in ((1, 1), (1, 2), (2, 4), (4, 1))
    ]
    table = LayoutTable.from_layouts(rows)
    kinds = expert_kinds(model, table)
    parts = [table.take(np.flatnonzero(kinds == experts)) for experts in Experts]
    solved = [(part, *objective(model, part)) for part in parts]
    found = [
        fastest(model, experts, terms) for experts, (*_, terms) in zip(Experts, solved, strict=True)
    ]
    own = slots(model)
    columns = st.tuples(*(st.sampled_from(slot.dims) for slot in own))

    @given(columns, st.booleans())
    @settings(max_examples=60, deadline=None)
    def slower(chosen: tuple[Dim, ...], tokens_cut: bool) -> None:
        dims = spelt(model, dict(zip(own, chosen, strict=True)), tokens_cut=tokens_cut)
        for (part, setting, weights, loads, terms), best, experts in zip(
            solved, found, Experts, strict=True
        ):
            same = np.zeros(len(part), dtype=np.int64)
            sampled = walked_s(setting, part.with_dims(same, (dims,)), weights, loads)
            default = walked_s(setting, part, weights, loads)
            gain = megatron_s(model, experts, terms) - best.seconds
            assert (default - sampled <= gain + 1e-9 * default).all()

    slower()
    for (part, setting, weights, loads, terms), best, experts in zip(
        solved, found, Experts, strict=True
    ):
        own_dims = part.with_dims(*named(model, best.codes))
        gain = walked_s(setting, part, weights, loads) - walked_s(setting, own_dims, weights, loads)
        np.testing.assert_allclose(
            gain, megatron_s(model, experts, terms) - best.seconds, rtol=1e-6, atol=1e-12
        )


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_within_memory_the_search_finds_what_brute_force_finds(model):
    """The room is shrunk to where the fastest assignment no longer fits."""
    layout = layout_of(model, max_num_batched_tokens=16384, max_num_seqs=512)
    one, dims = LayoutTable.from_layouts([layout]), assignments(model)
    rows = as_rows(layout, dims)
    setting, weights, loads, _ = objective(model, one)
    _, megatron = estimated(model, one)
    seconds = walked_s(setting, rows, *repeated(weights, loads, len(rows)))
    wide, case = taken(megatron, np.zeros(len(rows), dtype=np.int64)), setting.case(rows)
    memory = sharded_memory(
        setting.model,
        GROUP.device,
        case.grid,
        rows,
        megatron=wide.memory,
        sharding=setting.sharding(rows),
        default=setting.sharding(rows, default=True),
        context=2300,
    )
    needed = 512 * memory.sequence_bytes - memory.kv_budget  # 0: just fits
    tight = 0

    @given(st.floats(0.0, 1.0))
    @settings(max_examples=30, deadline=None)
    def equal(share: float) -> None:
        nonlocal tight
        spare = float(np.quantile(needed, share)) + 1.0  # a byte for rounding
        fits = needed <= spare
        fits_as_it_is = np.array([fits[dims.index(())]])
        found = search_dims(
            setting,
            one.take(fits_as_it_is),
            one.take(~fits_as_it_is),
            headroom=0.2 - spare / GROUP.device.memory_bytes,
            max_model_len=2300,
        )
        best, default = seconds[fits].min(), dims.index(())
        if fits[default] and seconds[default] <= best * (1.0 + 1e-9):
            assert len(found.table) == 1
            return
        added = dims.index(found.table.row(len(found.table) - 1).dims)
        assert seconds[added] == pytest.approx(best, rel=1e-9)
        assert needed[added] <= spare + 1e-9 * abs(spare)
        tight += best > seconds.min() * (1.0 + 1e-9)

    equal()
    assert tight, "no example was bound by memory"


@pytest.mark.parametrize("batch", [1, 8, 64, 256])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (8, 1), (2, 4), (8, 8)])
@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_nothing_is_much_better_once_the_loop_has_settled_again(model, tp, pp, batch):
    """The objective is linear at Megatron's operating point; this is what that costs."""
    layout = layout_of(model, tp=tp, moe_tp=tp, pp=pp, max_num_seqs=batch)
    found = estimate_layouts(
        model, GROUP, as_rows(layout, assignments(model)), WORKLOAD, concurrency=batch
    )
    one = LayoutTable.from_layouts([layout])
    setting = Setting.of(model, GROUP, WORKLOAD)
    searched = search_dims(setting, one, headroom=0.2, max_model_len=2300)
    ours = searched.estimates.requests_per_s.max()
    most = found.requests_per_s[found.memory.max_sequences >= batch].max()
    assert ours >= most * (1.0 - 1e-3)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_the_loads_are_those_the_loop_has_settled_at(backend):
    table = LayoutTable.from_layouts(
        [
            layout_of(MOE, pp=pp, dp=dp, moe_tp=8 * dp, max_num_seqs=64 * dp)
            for pp in (1, 4)
            for dp in (1, 2)
        ]
    )
    setting, made = estimated(MOE, table, serving=Serving(backend=backend))
    case = setting.case(table)
    demand = demand_of(
        case.grid,
        WORKLOAD,
        setting.serving,
        table,
        offered=made.concurrency,
        running=made.running,
    )
    decode, mixed = step_loads(case, demand, made.state.decoding)
    decode_s = total(step_parts(case, decode, setting.coefficients))
    mixed_s = total(step_parts(case, mixed, setting.coefficients))
    np.testing.assert_allclose(decode_s, made.state.decode_s, rtol=1e-9)
    apart = np.where(case.engine.mixes, 0.0, decode_s)
    np.testing.assert_allclose(mixed_s + apart, made.state.mixed_s, rtol=1e-9)


def test_two_rounds_settle_to_a_fifth_of_a_thousandth():
    dims: Dims = (("ffn_down", DIMS[2]), ("ffn_up", DIMS[2]), ("residual", Dim.ROW))
    rows = [
        replace(layout_of(DENSE, tp=tp, pp=pp, max_num_seqs=seqs), dims=dims)
        for tp in (2, 8)
        for pp in (1, 4)
        for seqs in (8, 64, 512)
    ]
    table = LayoutTable.from_layouts(rows)
    setting, made = estimated(DENSE, table)
    twice, often = (resharded(setting, table, made, rounds=rounds) for rounds in (ROUNDS, 8))
    for name in ("tpot_s", "ttft_s", "requests_per_s"):
        np.testing.assert_allclose(getattr(twice, name), getattr(often, name), rtol=2e-4)
    assert np.abs(often.tpot_s / made.tpot_s - 1.0).max() > 0.01  # they do differ from Megatron


def test_default_dims_are_the_estimate_and_parts_sum_up():
    table = LayoutTable.from_layouts(
        [
            layout_of(MOE),
            replace(layout_of(MOE), dims=(("residual", Dim.ROW),)),
            layout_of(MOE, dp=2, moe_tp=1, moe_ep=16),
        ]
    )
    made = estimate_layouts(MOE, GROUP, table, WORKLOAD, concurrency=table.max_num_seqs)
    plain = estimate(MOE, GROUP, table, WORKLOAD, concurrency=table.max_num_seqs)
    np.testing.assert_array_equal(made.tpot_s[[0, 2]], plain.tpot_s[[0, 2]])
    assert made.tpot_s[1] != plain.tpot_s[1]
    np.testing.assert_allclose(total(made.parts), made.tpot_s, rtol=1e-12)
    np.testing.assert_allclose(total(made.ttft_parts), made.ttft_s, rtol=1e-12)
    alone = estimate_layouts(MOE, GROUP, table.take(np.array([1])), WORKLOAD, concurrency=32)
    assert alone.tpot_s[0] == pytest.approx(made.tpot_s[1], rel=1e-12)


def test_a_dim_that_tp_does_not_divide_is_never_chosen():
    model = get_model("smollm2-135m-instruct")  # 9 heads; tp = 9 divides no width but the hidden
    one = LayoutTable.from_layouts([Layout(tp=9, moe_tp=9, max_num_seqs=64)])
    *_, terms = objective(model, one)
    found = fastest(model, Experts.CUT, terms)
    own = slots(model)
    for slot, code in zip(own, found.codes[:-1, 0], strict=True):
        operator = next((o for o in model.layers[0][0].operators if o.name == slot.name), None)
        if operator is None or DIMS[code] is slot.default:
            continue
        side = {Dim.COLUMN: operator.cols, Dim.ROW: operator.rows}.get(DIMS[code], 9)
        assert side % 9 == 0


def test_one_rank_gets_no_dims():
    table = LayoutTable.from_layouts([layout_of(DENSE, tp=1)])
    setting = Setting.of(DENSE, GROUP, WORKLOAD)
    found = search_dims(setting, table, headroom=0.2, max_model_len=2300)
    assert len(found.table) == 1
    assert found.strategies == 0


def test_tables_keep_the_dims_of_their_rows():
    dims: Dims = (("residual", Dim.ROW),)
    first = LayoutTable.from_layouts([layout_of(DENSE), replace(layout_of(DENSE), dims=dims)])
    second = LayoutTable.from_layouts([layout_of(DENSE, tp=4)])
    both = second.followed_by(first).followed_by(first)
    assert [both.row(index).dims for index in range(5)] == [(), (), dims, (), dims]
    assert both.take(np.array([2, 0])).row(0).dims == dims
    assert both.under_default_dims(4) == 1
    assert both.under_default_dims(1) is None
    assert second.followed_by(second).dims is None


def test_what_a_rank_holds_is_less_by_what_is_cut():
    model = get_model("deepseek-v3")
    table = LayoutTable.from_layouts([Layout(tp=8, moe_ep=8)])
    setting = Setting.of(model, GROUP, WORKLOAD)
    held = holdings(model, setting.case(table).grid, context=2300)
    assert (held.operators[0] <= held.operators[2]).all()
    assert (held.cores[0] <= held.cores[1]).all()
