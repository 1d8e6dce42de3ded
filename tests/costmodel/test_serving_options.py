"""What serving options may never do, whatever the model, layout and workload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving, estimate
from cluster.costmodel.speculation import Speculation
from cluster.model.formats import NumberFormat
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Workload
from tests.costmodel import specs

GIB = 1024.0**3
MODELS = {"dense": specs.dense(), "moe": specs.moe()}
GROUP = specs.group(nodes=64)
names = st.sampled_from(sorted(MODELS))
backends = st.sampled_from(["vllm", "sglang", "trtllm"])
workloads = st.builds(Workload, isl=st.integers(16, 12000), osl=st.integers(16, 2000))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    tp, spread = draw(st.sampled_from([1, 2, 4, 8])), draw(st.booleans())
    return Layout(
        tp=tp,
        pp=draw(st.sampled_from([1, 2, 4])),
        moe_tp=1 if spread else tp,
        moe_ep=tp if spread else 1,
        max_num_seqs=draw(st.integers(1, 256)),
        max_num_batched_tokens=draw(st.sampled_from([512, 2048, 8192])),
    )


def run(
    name: str,
    layout: Layout,
    workload: Workload,
    serving: Serving = PLAIN,
    *,
    concurrency: float | None = None,
    **device: object,
) -> EstimateTable:
    table = LayoutTable.from_layouts([layout])
    return estimate(
        MODELS[name],
        specs.group(nodes=64, **device) if device else GROUP,
        table,
        workload,
        concurrency=table.max_num_seqs if concurrency is None else concurrency,
        serving=serving,
    )


@settings(max_examples=80, deadline=None)
@given(
    name=names,
    layout=layouts(),
    workload=workloads,
    backend=backends,
    hits=st.tuples(st.floats(0.0, 0.95), st.floats(0.0, 0.95)).map(sorted),
)
def test_a_higher_prefix_hit_never_raises_ttft_or_tpot(name, layout, workload, backend, hits):
    serving = Serving(backend=backend)
    low, high = (
        run(name, layout, replace(workload, prefix_hit=hit), serving, concurrency=1) for hit in hits
    )
    # A last chunk counts as a whole one, and tokens after a cached prefix attend to more.
    assert high.ttft_s[0] <= low.ttft_s[0] * 1.1
    assert high.tpot_s[0] <= low.tpot_s[0] * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(
    name=names,
    layout=layouts(),
    workload=workloads,
    hits=st.tuples(st.floats(0.0, 0.95), st.floats(0.0, 0.95)).map(sorted),
)
def test_a_higher_prefix_hit_serves_at_least_as_many(name, layout, workload, hits):
    low, high = (run(name, layout, replace(workload, prefix_hit=hit)) for hit in hits)
    # The closed loop stops its fixed point after a few rounds, some percent from the end.
    assert high.requests_per_s[0] >= low.requests_per_s[0] * 0.85
    assert high.ttft_s[0] <= low.ttft_s[0] * 1.15 + 1e-3


@settings(max_examples=80, deadline=None)
@given(
    name=names,
    layout=layouts(),
    workload=workloads,
    backend=backends,
    speculation=st.builds(
        Speculation,
        drafts=st.integers(1, 8),
        acceptance=st.just(0.0),
        draft_share=st.floats(0.0, 0.3),
    ),
)
def test_drafts_that_are_never_kept_are_never_faster(name, layout, workload, backend, speculation):
    plain = Serving(backend=backend)
    assert speculation.accepted == 1.0
    base = run(name, layout, workload, plain, concurrency=1)
    found = run(name, layout, workload, replace(plain, speculation=speculation), concurrency=1)
    assert found.tpot_s[0] >= base.tpot_s[0] * (1 - 1e-9)
    assert found.requests_per_s[0] <= base.requests_per_s[0] * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(
    name=names,
    layout=layouts(),
    workload=workloads,
    drafts=st.integers(1, 8),
    rates=st.tuples(st.floats(0.0, 0.99), st.floats(0.0, 0.99)).map(sorted),
)
def test_keeping_more_drafts_is_never_slower(name, layout, workload, drafts, rates):
    low, high = (Speculation(drafts=drafts, acceptance=rate) for rate in rates)
    assert 1.0 <= low.accepted <= high.accepted <= drafts + 1
    slow, fast = (
        run(name, layout, workload, Serving(speculation=each), concurrency=1)
        for each in (low, high)
    )
    assert fast.tpot_s[0] <= slow.tpot_s[0] * (1 + 1e-9)


@settings(max_examples=80, deadline=None)
@given(
    name=names,
    layout=layouts(),
    workload=workloads,
    backend=backends,
    sizes=st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)).map(sorted),
)
def test_offload_is_never_faster_and_lowers_memory(name, layout, workload, backend, sizes):
    less, more = (
        run(
            name,
            layout,
            workload,
            Serving(backend=backend, offload_bytes=size * GIB),
            concurrency=1,
        )
        for size in sizes
    )
    assert more.tpot_s[0] >= less.tpot_s[0] * (1 - 1e-9)
    assert more.ttft_s[0] >= less.ttft_s[0] * (1 - 1e-9)
    assert more.memory.weights[0] <= less.memory.weights[0]
    freed = less.memory.weights[0] - more.memory.weights[0]
    assert freed <= (sizes[1] - sizes[0]) * GIB * (1 + 1e-9) + 1.0
    assert more.kv_capacity_tokens[0] >= less.kv_capacity_tokens[0]


def test_offload_pays_the_host_link_once_a_step():
    layout, workload = Layout(max_num_seqs=1), Workload(isl=100, osl=100)
    base, found = (
        run("dense", layout, workload, Serving(offload_bytes=size), concurrency=1)
        for size in (0.0, 4.0 * GIB)
    )
    added = float(found.tpot_s[0] - base.tpot_s[0])
    assert added == pytest.approx(4.0 * GIB / GROUP.device.host_bandwidth, rel=1e-6)


@settings(max_examples=80, deadline=None)
@given(layout=layouts(), workload=workloads, backend=backends, drafts=st.integers(0, 4))
def test_no_serving_option_beats_the_roofline(layout, workload, backend, drafts):
    speculation = Speculation(drafts=drafts, acceptance=0.5) if drafts else None
    found = run(
        "dense", layout, workload, Serving(backend=backend, speculation=speculation), concurrency=1
    )
    model, device = MODELS["dense"], GROUP.device
    kinds = [(kind, count) for kind, count in model.layers]
    read = sum(op.weight_bytes * n for kind, n in kinds for op in kind.operators) / layout.tp
    flops = sum(op.flops_per_token * n for kind, n in kinds for op in kind.operators) / layout.tp
    kept = 1.0 if speculation is None else speculation.accepted
    # Every weight is read once a step, of all stages in turn, and every drafted token multiplied.
    assert found.tpot_s[0] >= 0.99 * read / device.memory_bandwidth / kept
    assert found.tpot_s[0] >= (1 + drafts) * flops / device.flops[NumberFormat.BF16] / kept
    prompt = workload.isl * flops / device.flops[NumberFormat.BF16] / layout.pp
    assert found.ttft_s[0] >= prompt


@settings(max_examples=60, deadline=None)
@given(name=names, layout=layouts(), workload=workloads, slower=st.floats(1.0, 8.0))
def test_a_slower_memory_or_link_is_never_faster(name, layout, workload, slower):
    base = run(name, layout, workload, concurrency=1)
    device = GROUP.device
    for change in (
        {"memory_bandwidth": device.memory_bandwidth / slower},
        {"link_bandwidth": device.link_bandwidth / slower},
        {"network_bandwidth": device.network_bandwidth / slower},
    ):
        found = run(name, layout, workload, concurrency=1, **change)
        assert found.tpot_s[0] >= base.tpot_s[0] * (1 - 1e-9)
        assert found.ttft_s[0] >= base.ttft_s[0] * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(name=names, layout=layouts(), workload=workloads, more=st.integers(1, 8))
def test_memory_rises_with_the_batch_and_the_chunk(name, layout, workload, more):
    base = run(name, layout, workload).memory
    batch = run(name, replace(layout, max_num_seqs=layout.max_num_seqs * (1 + more)), workload)
    chunk = replace(layout, max_num_batched_tokens=layout.max_num_batched_tokens * (1 + more))
    wide = run(name, chunk, workload)
    for memory in (batch.memory, wide.memory):
        assert memory.activations[0] >= base.activations[0]
        assert memory.kv_budget[0] <= base.kv_budget[0]
        assert memory.weights[0] == base.weights[0]
    longer = run(name, layout, replace(workload, osl=workload.osl * (1 + more))).memory
    assert longer.sequence_bytes[0] >= base.sequence_bytes[0]
    assert longer.max_sequences[0] <= base.max_sequences[0]


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_every_engine_serves_a_plain_request(backend):
    found = run(
        "dense", Layout(max_num_seqs=8), Workload(isl=1000, osl=100), Serving(backend=backend)
    )
    assert np.isfinite([found.ttft_s[0], found.tpot_s[0]]).all()
    assert found.ttft_s[0] > found.tpot_s[0] > 0.0
