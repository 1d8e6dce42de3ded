from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel import collectives, compute
from cluster.costmodel.calibration_file import default_coefficients, operator_coefficients
from cluster.costmodel.case import Case, make_case
from cluster.costmodel.collectives import Fabric, ring
from cluster.costmodel.estimate import EstimateTable, estimate
from cluster.costmodel.steps import Parts, StepLoad, step_parts
from cluster.model.formats import NumberFormat
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload
from tests.costmodel import specs

COEFFICIENTS = default_coefficients()
MODELS = {"dense": specs.dense(), "moe": specs.moe()}
powers = st.sampled_from([1, 2, 4, 8])
workloads = st.builds(Workload, isl=st.integers(1, 12000), osl=st.integers(1, 2000))


def case_of(model: ModelSpec, row: Layout, **group: object) -> Case:
    table = LayoutTable.from_layouts([row])
    return make_case(model, specs.group(**group), table, COEFFICIENTS)  # type: ignore[arg-type]


def decode_step(case: Case, batch: float, *, context: float) -> Parts:
    one, zero = np.ones(1), np.zeros(1)
    load = StepLoad(
        decode=batch * one,
        context=context * one,
        prefill=zero,
        prompt=context * one,
        routed=batch * one,
        queries=one,
        cached=zero,
        offloaded=zero,
    )
    return step_parts(case, load, COEFFICIENTS)


def fabric_of(**changes: object) -> Fabric:
    return case_of(MODELS["dense"], Layout(), **changes).fabric(COEFFICIENTS)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, dp, pp = draw(powers), draw(powers), draw(powers)
    ep = draw(st.booleans())
    return Layout(
        tp=tp,
        dp=dp,
        pp=pp,
        moe_tp=1 if ep else tp * dp,
        moe_ep=tp * dp if ep else 1,
        max_num_seqs=draw(st.integers(1, 512)),
        max_num_batched_tokens=draw(st.sampled_from([128, 1024, 8192])),
    )


def run(
    model: ModelSpec, rows: list[Layout], workload: Workload, **options: object
) -> EstimateTable:
    table = LayoutTable.from_layouts(rows)
    concurrency = options.pop("concurrency", table.max_num_seqs)
    return estimate(
        model,
        specs.group(nodes=64),
        table,
        workload,
        concurrency=concurrency,
        **options,  # type: ignore[arg-type]
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(layouts(), min_size=2, max_size=6),
    workload=workloads,
    name=st.sampled_from(sorted(MODELS)),
)
def test_a_table_equals_its_rows_one_by_one(rows, workload, name):
    together = run(MODELS[name], rows, workload)
    for index, row in enumerate(rows):
        alone = run(MODELS[name], [row], workload)
        for field in ("ttft_s", "tpot_s", "tokens_per_s_per_device", "kv_capacity_tokens"):
            assert getattr(alone, field)[0] == pytest.approx(getattr(together, field)[index])


@settings(max_examples=100, deadline=None)
@given(row=layouts(), workload=workloads, name=st.sampled_from(sorted(MODELS)))
def test_parts_are_not_negative_and_sum_to_the_total(row, workload, name):
    found = run(MODELS[name], [row], workload)
    for parts, whole in ((found.parts, found.tpot_s), (found.ttft_parts, found.ttft_s)):
        values = [float(part[0]) for part in parts.values()]
        assert min(values) >= -1e-15
        assert sum(values) == pytest.approx(float(whole[0]))


@settings(max_examples=100, deadline=None)
@given(row=layouts(), workload=workloads, name=st.sampled_from(sorted(MODELS)))
def test_little_s_law_holds(row, workload, name):
    found = run(MODELS[name], [row], workload)
    residence = found.ttft_s + max(workload.osl - 1, 1) * found.tpot_s
    in_flight = float((found.requests_per_s * residence)[0])
    # Ranks without a request are idle: with fewer requests than ranks each holds at most one.
    assert in_flight == pytest.approx(float(found.concurrency[0]), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(row=layouts(), batch=st.integers(1, 4096), context=st.integers(1, 32768))
def test_a_dense_decode_step_is_never_faster_than_the_roofline(row, batch, context):
    model = MODELS["dense"]
    row = replace(row, dp=1, moe_tp=row.tp, moe_ep=1)
    parts = decode_step(case_of(model, row, nodes=64), float(batch), context=float(context))
    device = specs.device()
    weights = sum(op.weight_bytes * n for kind, n in model.layers for op in kind.operators) / row.tp
    flops = sum(op.flops_per_token * n for kind, n in model.layers for op in kind.operators)
    busy = float(parts["projections"][0] + parts["ffn"][0])
    assert busy >= 0.99 * weights / device.memory_bandwidth
    assert busy >= batch * flops / row.tp / device.flops[NumberFormat.BF16]
    kv = batch * model.kv_bytes(context) / min(row.tp, 8) / device.memory_bandwidth
    assert float(parts["attention"][0]) >= kv * 0.999


@given(
    rows=st.integers(64, 16384),
    cols=st.integers(64, 16384),
    more=st.integers(1, 8),
    tokens=st.floats(1.0, 1e5),
    stored=st.sampled_from(list(NumberFormat)),
)
def test_a_product_obeys_the_roofline_and_more_bytes_are_never_faster(
    rows, cols, more, tokens, stored
):
    def seconds(cols: int) -> float:
        model = specs.single(rows=rows, cols=cols, stored=stored)
        case = case_of(model, Layout())
        seen = compute.Tokens(
            here=np.array([tokens]), sampled=np.zeros(1), routed=np.array([tokens])
        )
        return float(compute.operators_s(case, seen, COEFFICIENTS)[0, 0])

    device = specs.device()
    flops = 2.0 * rows * cols * tokens
    size = rows * cols * stored.bytes
    assert seconds(cols) >= flops / max(device.flops.values())
    assert seconds(cols) >= size / device.memory_bandwidth
    assert seconds(cols * more) >= seconds(cols)


@given(
    size=st.floats(0.0, 1e10), more=st.floats(1.0, 100.0), ranks=st.sampled_from([2, 4, 8, 16, 64])
)
def test_collectives_grow_with_bytes_and_are_cheaper_inside_a_domain(size, more, ranks):
    fabric = fabric_of()
    n, one = np.array([float(ranks)]), np.ones(1)
    inside, outside = ring(n, one, domain=64), ring(n, one, domain=1)
    alone = ring(one, one, domain=8)
    small, large = np.array([size]), np.array([size * more])

    def all_to_all(size, group, fabric):
        return collectives.all_to_all(size, np.full(1, 4.0), group, fabric)

    for collective in (
        collectives.all_reduce,
        collectives.all_gather,
        collectives.reduce_scatter,
        all_to_all,
    ):
        assert collective(large, inside, fabric)[0] >= collective(small, inside, fabric)[0]
        assert collective(large, outside, fabric)[0] >= collective(small, outside, fabric)[0]
        assert collective(small, outside, fabric)[0] > collective(small, inside, fabric)[0]
        assert collective(small, alone, fabric)[0] == 0.0


def test_a_large_all_reduce_moves_what_its_two_halves_move():
    fabric = fabric_of()
    group = ring(np.array([8.0]), np.ones(1), domain=8)
    size = np.array([1e9])
    halves = collectives.all_gather(size, group, fabric) + collectives.reduce_scatter(
        size, group, fabric
    )
    assert collectives.all_reduce(size, group, fabric)[0] == pytest.approx(halves[0], rel=0.01)


@pytest.mark.parametrize(
    ("size", "measured_us"), [(256 * 1024, 10.8), (1 << 20, 15.0), (8 << 20, 51.0)]
)
def test_an_h100_all_reduce_over_8_is_near_the_published_measurement(size, measured_us):
    # vLLM 0.24 under a CUDA graph, published with aiconfigurator's operator tables.
    case = make_case(
        MODELS["dense"],
        specs.group(),
        LayoutTable.from_layouts([Layout()]),
        operator_coefficients(),
    )
    fabric = case.fabric(operator_coefficients())
    group = ring(np.array([8.0]), np.ones(1), domain=8)
    found = collectives.all_reduce(np.array([float(size)]), group, fabric)
    assert found[0] * 1e6 == pytest.approx(measured_us, rel=0.4)


def test_doubling_tp_halves_the_weights_of_a_device():
    model = MODELS["dense"]
    whole, half = run(
        model, [Layout(tp=1), Layout(tp=2, moe_tp=2)], Workload(isl=10, osl=10)
    ).memory.weights
    replicated = 2 * 4096 * 32 * 2  # norms of 32 layers, 2 bytes
    assert half - replicated == pytest.approx((whole - replicated) / 2)


def test_spreading_experts_divides_their_weights():
    rows = [Layout(), Layout(dp=8, moe_ep=8), Layout(tp=8, moe_tp=8)]
    alone, spread, cut = run(MODELS["moe"], rows, Workload(isl=10, osl=10)).memory.weights
    assert cut < spread < alone
    experts = 64 * (4096 * 4096 + 2048 * 4096) * 2.0 * 32
    assert alone - spread == pytest.approx(experts * 7 / 8)


@settings(max_examples=50, deadline=None)
@given(row=layouts(), workload=workloads, more=st.integers(2, 8))
def test_more_requests_in_flight_never_lower_tpot_or_throughput(row, workload, more):
    row = replace(row, max_num_seqs=4096)
    few = run(MODELS["dense"], [row], workload, concurrency=8 * row.dp)
    many = run(MODELS["dense"], [row], workload, concurrency=8 * row.dp * more)
    assert many.tpot_s[0] >= few.tpot_s[0] * (1 - 1e-3)
    assert many.ttft_s[0] >= few.ttft_s[0] * (1 - 1e-3)


def test_a_batch_beyond_the_kv_cache_waits():
    row = Layout(max_num_seqs=4096, max_num_batched_tokens=8192)
    found = run(MODELS["dense"], [row], Workload(isl=8000, osl=500))
    assert found.running[0] < 4096
    assert found.running[0] * 8500 <= found.kv_capacity_tokens[0] * 1.01
    assert found.ttft_parts["queue"][0] > 10 * found.ttft_parts["prefill"][0]


def test_only_pipelines_pay_a_bubble():
    rows = [Layout(pp=pp, max_num_seqs=64) for pp in (1, 2, 4, 8)]
    found = run(MODELS["dense"], rows, Workload(isl=2000, osl=500))
    shares = found.parts["bubble"] / found.tpot_s
    assert shares[0] == 0.0
    assert (shares[1:] > 0.02).all()
    assert (shares[1:] < 0.6).all()


def test_what_does_not_fit_is_marked_and_not_raised():
    model = specs.dense(layers=400)
    found = run(model, [Layout(), Layout(tp=8, moe_tp=8)], Workload(isl=100, osl=100))
    assert list(found.fits) == [False, True]
    assert found.memory.kv_budget[0] < 0
    assert np.isfinite(found.tpot_s).all()


def test_a_device_without_a_price_has_no_cost():
    table = LayoutTable.from_layouts([Layout()])
    group = specs.group(price_per_hour=None)
    found = estimate(MODELS["dense"], group, table, Workload(isl=10, osl=10), concurrency=1)
    assert np.isnan(found.cost_per_million_tokens[0])


def test_a_cpu_holds_sixteen_bit_weights_in_fp32():
    table = LayoutTable.from_layouts([Layout()])
    cpu = specs.group(
        name="cpu", kind="cpu", flops={NumberFormat.FP32: 1e11}, memory_bandwidth=2.4e10
    )
    gpu, held = (
        estimate(MODELS["dense"], g, table, Workload(isl=10, osl=10), concurrency=1)
        for g in (specs.group(), cpu)
    )
    assert held.memory.weights[0] == pytest.approx(2 * gpu.memory.weights[0], rel=1e-3)
    assert held.tpot_s[0] > held.memory.weights[0] * 0.9 / 2.4e10


def test_a_small_batch_reads_few_experts():
    case = case_of(MODELS["moe"], Layout())
    read = [
        float(compute.expert_load(case, np.array([tokens]), COEFFICIENTS)[1][0])
        for tokens in (1.0, 4.0, 64.0, 4096.0)
    ]
    assert read[0] == pytest.approx(4.0, rel=0.05)  # 4 of 64 experts
    assert read[1] == pytest.approx(4 * read[0], rel=0.2)  # nearly disjoint
    assert read[3] <= 64.0
    seconds = [float(decode_step(case, b, context=b)["experts"][0]) for b in (1.0, 4.0, 64.0)]
    assert seconds[0] < seconds[1] < seconds[2] < 17 * seconds[0]


def test_a_table_of_many_blocks_equals_its_rows():
    rows = [
        Layout(tp=tp, moe_tp=tp, max_num_seqs=seqs, max_num_batched_tokens=chunk)
        for tp in (1, 2, 4, 8)
        for seqs in range(1, 401)
        for chunk in (512, 1024, 8192)
    ]
    workload = Workload(isl=1000, osl=200)
    together = run(MODELS["dense"], rows, workload)
    assert len(together.tpot_s) > 4096
    for index in (0, 1, 4095, 4096, len(rows) - 1):
        alone = run(MODELS["dense"], [rows[index]], workload)
        assert together.tpot_s[index] == pytest.approx(alone.tpot_s[0])
        assert together.parts["attention"][index] == pytest.approx(alone.parts["attention"][0])


@pytest.mark.parametrize("name", sorted(MODELS))
def test_equal_operators_cost_the_same_merged(name):
    case = case_of(MODELS[name], Layout(tp=4, moe_tp=4))
    assert len(case.merged().chain.count) <= len(case.chain.count)
    apart, merged = (decode_step(each, 16.0, context=1000.0) for each in (case, case.merged()))
    assert {part: float(seconds[0]) for part, seconds in merged.items()} == pytest.approx(
        {part: float(seconds[0]) for part, seconds in apart.items()}
    )
