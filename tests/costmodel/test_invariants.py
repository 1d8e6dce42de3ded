from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel import collectives
from cluster.costmodel.coefficients import DEFAULT
from cluster.costmodel.collectives import fabric_of, ring
from cluster.costmodel.compute import gemm_s
from cluster.costmodel.estimate import EstimateTable, estimate
from cluster.costmodel.grid import make_grid
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.model.formats import NumberFormat
from cluster.model.layout import Layout, LayoutTable
from cluster.model.model_spec import ModelSpec
from cluster.model.workload import Workload
from tests.costmodel import specs

MODELS = {"dense": specs.dense(), "moe": specs.moe()}
powers = st.sampled_from([1, 2, 4, 8])
workloads = st.builds(Workload, isl=st.integers(1, 12000), osl=st.integers(1, 2000))


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
    model, group = MODELS["dense"], specs.group(nodes=64)
    row = replace(row, dp=1, moe_tp=row.tp, moe_ep=1)
    grid = make_grid(group, LayoutTable.from_layouts([row]), DEFAULT)
    b, c, zero = np.array([float(batch)]), np.array([float(context)]), np.zeros(1)
    load = StepLoad(decode=b, context=c, prefill=zero, prompt=c, routed=b)
    parts = step_parts(model, grid, load)
    device = group.device
    weights = sum(op.weight_bytes * n for kind, n in model.layers for op in kind.operators) / row.tp
    flops = sum(op.flops_per_token * n for kind, n in model.layers for op in kind.operators)
    busy = float(parts["projections"][0] + parts["ffn"][0])
    assert busy >= 0.99 * weights / device.memory_bandwidth
    assert busy >= batch * flops / row.tp / device.flops[NumberFormat.BF16]
    kv = batch * model.kv_bytes(context) / min(row.tp, 8) / device.memory_bandwidth
    assert float(parts["attention"][0]) >= kv


@given(
    flops=st.floats(1e6, 1e15),
    size=st.floats(1e3, 1e12),
    more=st.floats(1.0, 100.0),
    tokens=st.floats(1.0, 1e5),
    stored=st.sampled_from(list(NumberFormat)),
)
def test_a_product_obeys_the_roofline_and_more_bytes_are_never_faster(
    flops, size, more, tokens, stored
):
    grid = make_grid(specs.group(), LayoutTable.from_layouts([Layout()]), DEFAULT)

    def seconds(bytes_: float) -> float:
        return float(
            gemm_s(
                flops=np.array([flops]),
                bytes_=np.array([bytes_]),
                tokens=np.array([tokens]),
                stored=stored,
                grid=grid,
            )[0]
        )

    best = max(flops / max(grid.device.flops.values()), size / grid.device.memory_bandwidth)
    assert seconds(size) >= best
    assert seconds(size * more) >= seconds(size)


@given(
    size=st.floats(0.0, 1e10), more=st.floats(1.0, 100.0), ranks=st.sampled_from([2, 4, 8, 16, 64])
)
def test_collectives_grow_with_bytes_and_are_cheaper_inside_a_domain(size, more, ranks):
    fabric = fabric_of(specs.device(), DEFAULT)
    n, one = np.array([float(ranks)]), np.ones(1)
    inside, outside = ring(n, one, domain=64), ring(n, one, domain=1)
    alone = ring(one, one, domain=8)
    small, large = np.array([size]), np.array([size * more])
    for collective in (
        collectives.all_reduce,
        collectives.all_gather,
        collectives.reduce_scatter,
        collectives.all_to_all,
    ):
        assert collective(large, inside, fabric)[0] >= collective(small, inside, fabric)[0]
        assert collective(large, outside, fabric)[0] >= collective(small, outside, fabric)[0]
        assert collective(small, outside, fabric)[0] > collective(small, inside, fabric)[0]
        assert collective(small, alone, fabric)[0] == 0.0


def test_an_all_reduce_moves_what_its_two_halves_move():
    fabric = fabric_of(specs.device(), DEFAULT)
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
    device = specs.device(link_latency_s=6.9e-6)
    group = ring(np.array([8.0]), np.ones(1), domain=8)
    found = collectives.all_reduce(np.array([float(size)]), group, fabric_of(device, DEFAULT))
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
    assert found.running[0] * 8500 <= found.kv_capacity_tokens[0]
    assert found.ttft_parts["queue"][0] > 10 * found.ttft_parts["prefill"][0]


def test_deeper_pipelines_pay_a_growing_bubble():
    rows = [Layout(pp=pp, max_num_seqs=64) for pp in (1, 2, 4, 8)]
    found = run(MODELS["dense"], rows, Workload(isl=2000, osl=500))
    shares = found.parts["bubble"] / found.tpot_s
    assert shares[0] == 0.0
    assert (np.diff(shares) > 0).all()


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
    grid = make_grid(specs.group(), LayoutTable.from_layouts([Layout()]), DEFAULT)
    seconds = []
    for batch in (1.0, 4.0, 64.0):
        b = np.array([batch])
        load = StepLoad(decode=b, context=b, prefill=np.zeros(1), prompt=b, routed=b)
        parts = step_parts(MODELS["moe"], grid, load)
        assert total(parts)[0] > 0
        seconds.append(float(parts["experts"][0]))
    assert seconds[1] == pytest.approx(4 * seconds[0], rel=0.15)  # 4 of 64 experts each, disjoint
    assert seconds[2] < 17 * seconds[0]  # at most all 64
