from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.costmodel.calibration_file import default_coefficients
from cluster.costmodel.case import make_case
from cluster.costmodel.distributions import Quantiles, Statistic
from cluster.costmodel.estimate import estimate
from cluster.costmodel.open_loop import OpenLoopTable, open_loop
from cluster.costmodel.steps import prompt_host_s
from cluster.errors import InputError
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Lengths, Workload
from tests.costmodel import specs
from tests.costmodel.events import Observed, StepTimes, simulate

DENSE, GROUP = specs.dense(), specs.group()
# The reference takes a request up at the next step; an engine's scheduler is a little later.
PROMPT = default_coefficients().updated({"engine.vllm.wait_steps": 0.5}, source="test")


def table(**limits: int) -> LayoutTable:
    return LayoutTable.from_layouts([Layout(**limits)])


def at(workload: Workload, rate: float, *, batch: int = 64, chunk: int = 2048) -> OpenLoopTable:
    rows = table(max_num_seqs=batch, max_num_batched_tokens=chunk)
    return open_loop(DENSE, GROUP, rows, workload, rate=rate, coefficients=PROMPT)


def both(
    workload: Workload, load: float, *, batch: int, chunk: int, requests: int = 4000
) -> tuple[OpenLoopTable, Observed]:
    """The model and the reference at `load` of the rate that the model calls sustainable."""
    rate = load * float(at(workload, 1e-3, batch=batch, chunk=chunk).max_rate[0])
    rows = table(max_num_seqs=batch, max_num_batched_tokens=chunk)
    case = make_case(DENSE, GROUP, rows, PROMPT)
    steps = StepTimes(case, PROMPT, workload, chunk=chunk, batch=batch)
    host = PROMPT.value("engine.vllm.request_s")
    host += PROMPT.value("engine.vllm.prompt_token_s") * workload.isl
    seen = simulate(
        steps,
        workload,
        rate=rate,
        requests=requests,
        batch=batch,
        chunk=chunk,
        host_s=host * PROMPT.value("build.request"),
        launch_s=float(prompt_host_s(case, PROMPT)[0]),
        drawn=workload.lengths is Lengths.DRAWN,
    )
    return at(workload, rate, batch=batch, chunk=chunk), seen


def error(found: Quantiles, seen: np.ndarray, statistic: Statistic) -> float:
    level = {Statistic.P50: 0.5, Statistic.P90: 0.9, Statistic.P99: 0.99}.get(statistic)
    expected = seen.mean() if level is None else np.quantile(seen, level)
    return float(found.of(statistic)[0] / expected) - 1.0


# Workloads bound by decode, by prompts in one chunk, by prompts in many, and by the batch limit.
SCENES = {
    "mixed": (Workload(isl=1000, osl=100, lengths=Lengths.EQUAL), 64, 2048),
    "decode": (Workload(isl=200, osl=400, lengths=Lengths.EQUAL), 256, 8192),
    "chunks": (Workload(isl=2000, osl=20, lengths=Lengths.EQUAL), 256, 512),
    "long": (Workload(isl=4000, osl=100, lengths=Lengths.EQUAL), 64, 2048),
    "slots": (Workload(isl=500, osl=300, lengths=Lengths.EQUAL), 32, 8192),
    "drawn": (Workload(isl=500, osl=300), 32, 8192),
}


LOADS = {0.1: 3000, 0.5: 4000, 0.8: 20_000}  # requests that make the reference settle


@pytest.mark.parametrize("load", sorted(LOADS))
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_latencies_agree_with_an_event_simulation(scene, load):
    workload, batch, chunk = SCENES[scene]
    found, seen = both(workload, load, batch=batch, chunk=chunk, requests=LOADS[load])
    latencies = found.latencies
    assert abs(error(latencies.ttft, seen.ttft, Statistic.MEAN)) < 0.25
    assert abs(error(latencies.tpot, seen.tpot, Statistic.MEAN)) < 0.1
    assert abs(error(latencies.itl, seen.gaps, Statistic.MEAN)) < 0.1
    # Tails of waits are those of an exponential law, which real queues follow from afar.
    for statistic, tolerance in ((Statistic.P50, 0.2), (Statistic.P90, 0.45), (Statistic.P99, 0.6)):
        assert abs(error(latencies.ttft, seen.ttft, statistic)) < tolerance
    for statistic in (Statistic.P50, Statistic.P90, Statistic.P99):
        assert abs(error(latencies.tpot, seen.tpot, statistic)) < 0.15


@pytest.mark.parametrize("scene", ["mixed", "decode", "chunks", "slots", "drawn"])
def test_the_sustainable_rate_is_that_of_the_simulation(scene):
    workload, batch, chunk = SCENES[scene]
    below, calm = both(workload, 0.9, batch=batch, chunk=chunk)
    above, swamped = both(workload, 1.15, batch=batch, chunk=chunk)
    assert below.stable[0]
    assert not above.stable[0]
    assert np.isinf(above.latencies.ttft.p50[0])
    assert np.isfinite(above.latencies.tpot.p99[0])
    # Below, waits do not grow from the first half of the arrivals to the second; above, they do.
    half = len(calm.ttft) // 2
    assert calm.ttft[half:].mean() < 3.0 * calm.ttft[:half].mean()
    assert swamped.ttft[half:].mean() > 1.5 * swamped.ttft[:half].mean()
    assert swamped.ttft.max() > 5.0 * calm.ttft.mean()


rows = st.builds(
    Layout,
    tp=st.sampled_from([1, 4]),
    pp=st.sampled_from([1, 2]),
    max_num_seqs=st.integers(2, 512),
    max_num_batched_tokens=st.sampled_from([512, 2048, 8192]),
)


@settings(max_examples=40, deadline=None)
@example(  # one decodes under any load, beside one that is prefilled
    row=Layout(tp=1, pp=1, max_num_seqs=2, max_num_batched_tokens=512),
    workload=Workload(isl=1, osl=16),
    loads=[0.5, 0.8760767489622538],
)
@given(
    row=rows,
    workload=st.builds(Workload, isl=st.integers(1, 8000), osl=st.integers(16, 1000)),
    loads=st.tuples(st.floats(0.01, 0.98), st.floats(0.01, 0.98)).map(sorted),
)
def test_a_higher_rate_never_lowers_a_latency_and_little_s_law_holds(row, workload, loads):
    layouts = LayoutTable.from_layouts([row, row])
    most = open_loop(DENSE, GROUP, layouts, workload, rate=1e-6).max_rate
    found = open_loop(DENSE, GROUP, layouts, workload, rate=most * loads)
    assert found.max_rate == pytest.approx(most)
    assert found.utilisation == pytest.approx(loads)
    assert found.stable.all()
    latencies = found.latencies
    for latency in (latencies.ttft, latencies.tpot):
        for statistic in (Statistic.MEAN, Statistic.P90, Statistic.P99):
            low, high = latency.of(statistic)
            # Near saturation all steps hold prompts: TPOT rises, and scatters less.
            assert high >= low * (0.98 if statistic is Statistic.MEAN else 0.9)
    stay = latencies.ttft.mean + max(workload.osl - 1, 1) * latencies.tpot.mean
    assert found.in_flight == pytest.approx(found.rate * stay)


def test_a_quiet_replica_serves_a_request_as_if_alone():
    workload = Workload(isl=1000, osl=100)
    found = at(workload, 1e-4)
    alone = estimate(
        DENSE,
        GROUP,
        table(max_num_seqs=64),
        workload,
        concurrency=1,
        coefficients=PROMPT,
    )
    assert found.latencies.ttft.mean[0] == pytest.approx(float(alone.ttft_s[0]), rel=0.01)
    assert found.latencies.tpot.mean[0] == pytest.approx(float(alone.tpot_s[0]), rel=0.01)
    assert found.in_flight[0] < 0.001


def test_the_kv_cache_bounds_the_rate():
    workload = Workload(isl=8000, osl=1000)
    limits = {"max_num_seqs": 512, "max_num_batched_tokens": 8192}
    roomy = open_loop(DENSE, GROUP, table(**limits), workload, rate=0.1)
    tight = open_loop(DENSE, GROUP, table(**limits), workload, rate=0.1, headroom=0.6)
    assert tight.max_rate[0] < 0.7 * roomy.max_rate[0]
    nothing = open_loop(specs.dense(layers=400), GROUP, table(**limits), workload, rate=0.1)
    assert nothing.max_rate[0] == 0.0
    assert not nothing.stable[0]
    assert np.isinf(nothing.utilisation[0])


def test_burstier_arrivals_wait_longer():
    workload, batch = Workload(isl=500, osl=300), {"max_num_seqs": 32}
    most = open_loop(DENSE, GROUP, table(**batch), workload, rate=1e-3).max_rate
    tails = [
        float(
            open_loop(
                DENSE, GROUP, table(**batch), workload, rate=0.9 * most, cv2=cv2
            ).latencies.ttft.p99[0]
        )
        for cv2 in (0.0, 1.0, 4.0)
    ]
    assert tails[0] < tails[1] < tails[2]


@pytest.mark.parametrize(
    ("rate", "cv2"), [(0.0, 1.0), (-1.0, 1.0), (np.inf, 1.0), (np.nan, 1.0), (1.0, -1.0)]
)
def test_what_is_no_rate_is_refused(rate, cv2):
    with pytest.raises(InputError, match="requests/s"):
        open_loop(DENSE, GROUP, table(), Workload(isl=10, osl=10), rate=rate, cv2=cv2)
