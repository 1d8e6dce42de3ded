"""Three answers to one question: the closed form, the simulator, and what was measured."""

from pathlib import Path

import numpy as np
import pytest

from cluster.calibration.models import models_of
from cluster.calibration.predict import predict, with_builds
from cluster.calibration.runs import read_runs
from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import make_case
from cluster.costmodel.estimate import PLAIN, estimate
from cluster.costmodel.open_loop import open_loop
from cluster.costmodel.steps import StepLoad, step_parts, total
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Workload
from cluster.pool_ledger import ReplicaLimits
from cluster.sim.from_plan import ReplicaSource, replica_spec
from cluster.sim.measured_runs import replay_run
from cluster.sim.modelled_times import ModelledTimes
from cluster.sim.setup import GatewayRules, PoolSetup, Setup
from cluster.sim.simulation import Simulation
from cluster.sim.times import Piece
from cluster.traces.synthetic_text import parse_synthetic

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
GROUP = parse_cluster("1x8xH100").groups[0]
COEFFICIENTS = default_coefficients()
NO_GATEWAY = GatewayRules(batch_wait_s=0.0, max_queued=10**6, queue_wait_s=1e9)

LAYOUTS = [
    ("llama-3.1-8b", Layout(), "vllm"),
    ("llama-3.1-70b", Layout(tp=4, moe_tp=4), "trtllm"),
    ("deepseek-v3", Layout(dp=8, moe_ep=8), "sglang"),
    ("gpt-oss-120b", Layout(tp=2, moe_tp=2), "vllm"),
]


def column(value):
    return np.array([float(value)])


@pytest.mark.parametrize(("name", "layout", "backend"), LAYOUTS)
def test_tabulated_steps_are_those_of_the_cost_model(name, layout, backend):
    table = LayoutTable.from_layouts([layout])
    case = make_case(get_model(name), GROUP, table, COEFFICIENTS, backend=backend).merged()
    times = ModelledTimes(case, COEFFICIENTS)
    draw = np.random.default_rng(1)

    def exact(decode, context, prefill, routed):
        load = StepLoad(
            decode=column(decode),
            context=column(context),
            prefill=column(prefill),
            prompt=column(prefill or 1),
            routed=column(routed),
            queries=column(1),
            cached=column(0),
            offloaded=column(0),
        )
        return float(total(step_parts(case, load, COEFFICIENTS))[0])

    for _ in range(60):
        batch, context = int(draw.integers(1, 300)), int(draw.integers(10, 20_000))
        prompt, ranks = int(draw.integers(20, 8000)), layout.dp
        decode = times.decode_s(batch, float(batch * context), batch * ranks)
        assert decode == pytest.approx(exact(batch, context, 0, batch * ranks), rel=1e-3)
        routed = batch * ranks + prompt
        mixed = times.mixed_s(batch, float(batch * context), [Piece(prompt, 0, prompt)], routed)
        alone = times.decode_s(batch, float(batch * context), routed)
        assert mixed == pytest.approx(max(exact(batch, context, prompt, routed), alone), rel=1e-3)


def test_chunks_of_a_prompt_add_up_to_the_prompt():
    table = LayoutTable.from_layouts([Layout()])
    case = make_case(get_model("llama-3.1-8b"), GROUP, table, COEFFICIENTS).merged()
    times = ModelledTimes(case, COEFFICIENTS)
    fixed = times.mixed_s(0, 0.0, [Piece(1, 0, 8192)], 1)
    whole = times.mixed_s(0, 0.0, [Piece(8192, 0, 8192)], 8192)
    parts = sum(
        times.mixed_s(0, 0.0, [Piece(2048, start, 8192)], 2048) - fixed
        for start in range(0, 8192, 2048)
    )
    assert parts + fixed == pytest.approx(whole, rel=0.1)


def pool(name="llama-3.1-8b", layout=None, *, backend="vllm"):
    from dataclasses import replace

    layout = layout or Layout(max_num_seqs=256, max_num_batched_tokens=8192)
    source = ReplicaSource(
        model=get_model(name),
        group=GROUP,
        serving=replace(PLAIN, backend=backend),
        coefficients=COEFFICIENTS,
    )
    spec = replica_spec(source, layout, kv_tokens=400_000, weight_bytes=1e10)
    limits = ReplicaLimits(max_requests=10**6, max_tokens=1e12)
    return PoolSetup(name="main", spec=spec, replicas=1, limits=limits)


@pytest.mark.parametrize("concurrency", [1, 8, 64])
def test_a_closed_loop_agrees_with_the_service_model(concurrency):
    isl, osl = 1024, 256
    simulation = Simulation(Setup(pools=(pool(),), gateway=NO_GATEWAY))
    text = f"constant:rate=1,count={10 * concurrency},isl=uniform(820,1228),osl=uniform(205,307)"
    record = simulation.run_closed(parse_synthetic(text), concurrency=concurrency).record
    table = LayoutTable.from_layouts([Layout(max_num_seqs=256, max_num_batched_tokens=8192)])
    closed = estimate(
        get_model("llama-3.1-8b"), GROUP, table, Workload(isl=isl, osl=osl), concurrency=concurrency
    )
    assert record.tpot.mean == pytest.approx(float(closed.tpot_s[0]), rel=0.08)
    assert record.ttft.mean == pytest.approx(float(closed.ttft_s[0]), rel=0.4)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_open_arrivals_agree_with_the_open_loop(load):
    isl, osl = 1024, 128
    table = LayoutTable.from_layouts([Layout(max_num_seqs=256, max_num_batched_tokens=8192)])
    workload = Workload(isl=isl, osl=osl)
    model = get_model("llama-3.1-8b")
    most = float(open_loop(model, GROUP, table, workload, rate=1.0).max_rate[0])
    rate = load * most
    expected = open_loop(model, GROUP, table, workload, rate=rate)
    trace = parse_synthetic(
        f"poisson:rate={rate:.6f},count=3000,isl={isl},osl=exponential({osl}),seed=3"
    )
    record = Simulation(Setup(pools=(pool(),), gateway=NO_GATEWAY)).run(trace).record
    latencies = expected.latencies
    assert record.tpot.mean == pytest.approx(float(latencies.tpot.mean[0]), rel=0.15)
    assert record.ttft.mean == pytest.approx(float(latencies.ttft.mean[0]), rel=0.4)


def test_measured_runs_are_met_about_as_well_as_by_the_service_model():
    path = SHARED / "silicon" / "runs.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there: measured runs are not part of the project")
    runs = [
        run
        for run in read_runs(path)
        if run.backend == "vllm" and run.concurrency <= 32 and run.ttft_s and run.tpot_s
    ][::23]
    models = models_of(SHARED / "models")
    known = with_builds(COEFFICIENTS, runs)
    service_ttft, service_tpot = predict(runs, models, coefficients=known)
    replayed = [replay_run(run, models, coefficients=known) for run in runs]
    ttft = np.array([run.ttft_s for run in runs])
    tpot = np.array([run.tpot_s for run in runs])

    def error(values, truth):
        return float(np.median(np.abs(np.asarray(values) / truth - 1.0)))

    ours_tpot = error([one.tpot_s for one in replayed], tpot)
    ours_ttft = error([one.ttft_s for one in replayed], ttft)
    assert ours_tpot < error(service_tpot, tpot) + 0.02
    assert ours_ttft < error(service_ttft, ttft) + 0.05
