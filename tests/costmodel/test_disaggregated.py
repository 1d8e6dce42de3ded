from __future__ import annotations

import heapq
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.disaggregated import Pairs, most_utilisation, pairs, transfer_s
from cluster.costmodel.distributions import Statistic
from cluster.costmodel.estimate import PLAIN, Serving, estimate
from cluster.costmodel.pools import DecodePool, PrefillPool, decode_pool, prefill_pool
from cluster.costmodel.speculation import Speculation
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Workload
from tests.costmodel import specs

DENSE, GROUP = specs.dense(), specs.group(nodes=4)
WORKLOAD = Workload(isl=4000, osl=400)


def column(value: float) -> np.ndarray:
    return np.array([float(value)])


def sides(
    first: Layout, second: Layout, workload: Workload = WORKLOAD, serving: Serving = PLAIN
) -> tuple[PrefillPool, DecodePool]:
    one, two = (LayoutTable.from_layouts([layout]) for layout in (first, second))
    return (
        prefill_pool(DENSE, GROUP, one, workload, serving=serving),
        decode_pool(DENSE, GROUP, two, workload, serving=serving),
    )


def run(
    prefill: PrefillPool,
    decode: DecodePool,
    *,
    x: float = 1,
    y: float = 1,
    local: bool = True,
    ttft_s: float | None = None,
    statistic: Statistic = Statistic.MEAN,
) -> Pairs:
    inside = np.array([local])
    most = most_utilisation(
        prefill, decode, x=column(x), local=inside, ttft_s=ttft_s, statistic=statistic
    )
    return pairs(
        prefill, decode, x=column(x), y=column(y), local=inside, most=most, statistic=statistic
    )


def test_a_cache_travels_over_all_devices_at_once():
    whole = DENSE.kv_bytes(WORKLOAD.isl)
    link, network = 450e9, 50e9
    for first, second, moved in (
        (Layout(), Layout(), whole),
        (Layout(tp=4, moe_tp=4), Layout(tp=4, moe_tp=4), whole / 4),
        (Layout(tp=4, moe_tp=4), Layout(tp=2, moe_tp=2), whole / 2),
        # One sender for all that the four receive.
        (Layout(), Layout(tp=4, moe_tp=4), whole),
        # 16 ranks share 8 KV heads: each head is fetched twice.
        (Layout(tp=8, moe_tp=8), Layout(tp=16, moe_tp=16), whole / 4),
    ):
        prefill, decode = sides(first, second)
        for local, bandwidth in ((True, link), (False, network)):
            seconds = float(transfer_s(prefill, decode, local=np.array([local]))[0])
            assert seconds >= moved / bandwidth
            assert seconds <= moved / bandwidth / 0.4 + 1e-4  # links reach a part of their peak


@st.composite
def cases(draw: st.DrawFn) -> tuple[PrefillPool, DecodePool, Workload]:
    workload = Workload(isl=draw(st.integers(10, 12000)), osl=draw(st.integers(2, 2000)))
    degrees = st.sampled_from([1, 2, 4, 8])

    def layout() -> Layout:
        tp = draw(degrees)
        return Layout(
            tp=tp,
            moe_tp=tp,
            pp=draw(st.sampled_from([1, 2])),
            max_num_seqs=draw(st.integers(2, 256)),
            max_num_batched_tokens=draw(st.sampled_from([512, 2048, 8192])),
        )

    return (*sides(layout(), layout(), workload), workload)


@settings(max_examples=80, deadline=None)
@given(case=cases(), x=st.integers(1, 8), y=st.integers(1, 8), local=st.booleans())
def test_the_rate_is_within_both_pools_and_ttft_holds_its_parts(case, x, y, local):
    prefill, decode, workload = case
    found = run(prefill, decode, x=x, y=y, local=local)
    rate = float(found.requests_per_s[0])
    assert 0.0 < rate <= x * prefill.requests_per_s[0]
    tokens = max(workload.osl - 1, 1)
    assert rate <= y * decode.batch[0] / (tokens * decode.tpot_s[0]) * (1 + 1e-9)
    assert 0.0 < found.utilisation[0] <= 0.95 + 1e-9
    assert found.decode_share[0] <= 1.0 + 1e-9
    assert found.ttft_s[0] >= prefill.prefill_s[0] + found.transfer_s[0]
    assert found.tpot_s[0] == pytest.approx(float(decode.tpot_s[0]))


@settings(max_examples=60, deadline=None)
@given(case=cases(), x=st.integers(1, 6), y=st.integers(1, 6))
def test_more_replicas_and_faster_links_never_lower_the_rate(case, x, y):
    prefill, decode, _ = case
    base = run(prefill, decode, x=x, y=y, local=False)
    for changed in (
        run(prefill, decode, x=x + 1, y=y, local=False),
        run(prefill, decode, x=x, y=y + 1, local=False),
        run(prefill, replace(decode, network=decode.network * 4.0), x=x, y=y, local=False),
        run(prefill, decode, x=x, y=y, local=True),
    ):
        assert changed.requests_per_s[0] >= base.requests_per_s[0] * (1 - 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    case=cases(), slack=st.floats(1.001, 20.0), x=st.integers(1, 6), of=st.sampled_from(Statistic)
)
def test_a_bound_on_ttft_is_kept_or_nothing_is_feasible(case, slack, x, of):
    prefill, decode, _ = case
    bound = slack * float(prefill.prefill_s[0])
    found = run(prefill, decode, x=x, y=64, ttft_s=bound, statistic=of)
    if found.feasible[0]:
        assert found.ttft_s[0] <= bound * (1 + 1e-6)
    free = run(prefill, decode, x=x, y=64, statistic=of)
    assert found.requests_per_s[0] <= free.requests_per_s[0] * (1 + 1e-9)


def test_percentiles_of_ttft_rise():
    prefill, decode = sides(Layout(max_num_batched_tokens=4096), Layout(max_num_seqs=64))
    values = [
        float(run(prefill, decode, y=8, statistic=of).ttft_s[0])
        for of in (Statistic.P50, Statistic.P90, Statistic.P99)
    ]
    assert values[0] < values[1] < values[2]


def wait_of_events(servers: int, used: float, service: float, count: int) -> np.ndarray:
    """Waits in an M/D/c queue, first come first served."""
    rng = np.random.default_rng(5)
    arrive = np.cumsum(rng.exponential(service / (servers * used), count))
    free = [0.0] * servers
    waits = np.empty(count)
    for place, when in enumerate(arrive):
        start = max(when, heapq.heappop(free))
        waits[place] = start - when
        heapq.heappush(free, start + service)
    return waits[count // 10 :]


@pytest.mark.parametrize(("servers", "used"), [(1, 0.5), (1, 0.9), (4, 0.8), (8, 0.9)])
def test_waits_before_prefill_are_those_of_an_event_simulation(servers, used):
    prefill, decode = sides(Layout(max_num_batched_tokens=4000), Layout(max_num_seqs=64))
    rate = used * servers * float(prefill.requests_per_s[0])
    one = float(decode.batch[0] / (399 * decode.tpot_s[0] + run(prefill, decode).transfer_s[0]))
    decode = replace(decode, network=decode.network * 1e6, link=decode.link * 1e6)
    seen = wait_of_events(servers, used, 1.0 / float(prefill.requests_per_s[0]), 60_000)
    for of, expected in (
        (Statistic.MEAN, seen.mean()),
        (Statistic.P90, np.quantile(seen, 0.9)),
        (Statistic.P99, np.quantile(seen, 0.99)),
    ):
        found = run(prefill, decode, x=servers, y=rate / one, statistic=of)
        assert found.utilisation[0] == pytest.approx(used, rel=0.01)
        waited = float(found.ttft_s[0] - prefill.host_s[0] - prefill.prefill_s[0])
        waited -= float(found.transfer_s[0])
        assert waited == pytest.approx(expected, rel=0.35, abs=0.02 / prefill.requests_per_s[0])


def test_decode_without_prompts_is_faster_than_with():
    rows = [Layout(max_num_seqs=batch) for batch in (8, 32, 64)]
    table = LayoutTable.from_layouts(rows)
    apart = decode_pool(DENSE, GROUP, table, WORKLOAD)
    mixed = estimate(DENSE, GROUP, table, WORKLOAD, concurrency=table.max_num_seqs)
    # At the same number of decoding sequences, of which a mixed replica has fewer than its batch.
    assert (apart.tpot_s * mixed.state.decoding / apart.batch < mixed.tpot_s).all()
    assert (apart.batch / (WORKLOAD.osl * apart.tpot_s) > mixed.requests_per_s).all()


def test_a_longer_prompt_than_the_chunk_goes_chunk_by_chunk():
    chunked, _ = sides(Layout(max_num_batched_tokens=1000), Layout())
    whole, _ = sides(Layout(max_num_batched_tokens=4000), Layout())
    several, _ = sides(Layout(max_num_batched_tokens=16000), Layout())
    assert whole.prefill_s[0] < chunked.prefill_s[0] < several.prefill_s[0]
    assert chunked.requests_per_s[0] < whole.requests_per_s[0] < several.requests_per_s[0]


def test_what_does_not_fit_is_marked():
    big = specs.dense(layers=400)
    table = LayoutTable.from_layouts([Layout(), Layout(tp=8, moe_tp=8)])
    assert list(prefill_pool(big, GROUP, table, WORKLOAD).fits) == [False, True]
    assert list(decode_pool(big, GROUP, table, WORKLOAD).fits) == [False, True]


def test_drafts_speed_up_decode_and_scatter_it():
    serving = Serving(speculation=Speculation(drafts=3, acceptance=0.7))
    plain = sides(Layout(), Layout(max_num_seqs=8))[1]
    drafted = sides(Layout(), Layout(max_num_seqs=8), serving=serving)[1]
    assert drafted.tpot_s[0] < 0.6 * plain.tpot_s[0]
    assert drafted.tpot_spread[0] > plain.tpot_spread[0] == 0.0


def test_rows_are_taken_alike():
    table = LayoutTable.from_layouts([Layout(), Layout(tp=2, moe_tp=2), Layout(tp=4, moe_tp=4)])
    for pool in (
        prefill_pool(DENSE, GROUP, table, WORKLOAD),
        decode_pool(DENSE, GROUP, table, WORKLOAD),
    ):
        taken = pool.take(np.array([2, 0]))
        for name in (field.name for field in fields(pool)):
            assert list(getattr(taken, name)) == list(getattr(pool, name)[[2, 0]])
