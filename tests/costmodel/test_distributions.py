from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.distributions import (
    FirstToken,
    Latencies,
    Quantiles,
    Queue,
    Statistic,
    kept_variance,
    ttft_quantiles,
)
from cluster.costmodel.estimate import PLAIN, EstimateTable, Serving, estimate
from cluster.costmodel.percentiles import latencies_at, latencies_of
from cluster.costmodel.service import Demand
from cluster.costmodel.speculation import Speculation
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Lengths, Workload
from tests.costmodel import specs

MODELS = {"dense": specs.dense(), "moe": specs.moe()}
seconds = st.floats(0.0, 10.0)
shares = st.floats(0.0, 1.0)


def column(value: float) -> np.ndarray:
    return np.array([float(value)])


def waits(**changes: float) -> FirstToken:
    given = {
        **{"fixed_s": 0.1, "step_s": 0.01, "slot_s": 0.0, "burst": 0.1, "burst_s": 3.0},
        **{"prompts_s": 0.2, "prompts": 0.8, "backlog_s": 0.0, "backlog": 0.0, "stages": 1.0},
        **changes,
    }
    first = {name: column(given[name]) for name in ("fixed_s", "step_s", "slot_s", "burst")}
    return FirstToken(
        **first,
        burst_s=column(given["burst_s"]),
        prompts=Queue(
            mean_s=column(given["prompts_s"]), share=column(given["prompts"]), stages=column(1.0)
        ),
        backlog=Queue(
            mean_s=column(given["backlog_s"]),
            share=column(given["backlog"]),
            stages=column(given["stages"]),
        ),
    )


def figures(found: Quantiles) -> list[float]:
    return [float(found.of(statistic)[0]) for statistic in Statistic]


def drawn(made: FirstToken, count: int = 400_000) -> np.ndarray:
    rng = np.random.default_rng(7)
    total = made.fixed_s + 2.0 * made.step_s * rng.random(count)
    total = total + 2.0 * made.slot_s * rng.random(count)
    total += np.where(rng.random(count) < made.burst, made.burst_s * rng.random(count), 0.0)
    for queue in (made.prompts, made.backlog):
        if queue.share[0] > 0.0:
            scale = queue.mean_s / queue.share / queue.stages
            waited = rng.gamma(queue.stages[0], scale[0], count)
            total += np.where(rng.random(count) < queue.share, waited, 0.0)
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"burst": 0.4, "burst_s": 5.0, "backlog_s": 2.0, "backlog": 1.0, "stages": 20.0},
        {"burst": 0.0, "step_s": 0.05, "slot_s": 0.1, "prompts_s": 1.0, "prompts": 0.9},
    ],
)
def test_the_sum_of_waits_has_the_percentiles_of_a_million_draws(changes):
    made = waits(**changes)
    points = drawn(made)
    expected = [points.mean(), *np.quantile(points, [0.5, 0.9, 0.99])]
    assert figures(ttft_quantiles(made)) == pytest.approx(expected, rel=0.04)


@given(
    values=st.fixed_dictionaries(
        {
            **dict.fromkeys(
                ("fixed_s", "step_s", "slot_s", "burst_s", "prompts_s", "backlog_s"), seconds
            ),
            **dict.fromkeys(("burst", "prompts", "backlog"), shares),
            "stages": st.floats(1.0, 100.0),
        }
    ),
    longer=st.sampled_from(
        ["fixed_s", "step_s", "slot_s", "burst", "burst_s", "prompts_s", "backlog_s"]
    ),
)
def test_a_longer_wait_never_lowers_a_percentile(values, longer):
    more = min(values[longer] * 1.5, 1.0) if longer == "burst" else values[longer] * 1.5
    before, after = (
        ttft_quantiles(waits(**values)),
        ttft_quantiles(waits(**values | {longer: more})),
    )
    for low, high in zip(figures(before)[1:], figures(after)[1:], strict=True):
        assert high >= low - 1e-12
    assert figures(before)[1:] == sorted(figures(before)[1:])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, Layout, Workload, Serving]:
    tp, dp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    layout = Layout(
        tp=tp,
        dp=dp,
        pp=draw(st.sampled_from([1, 2, 4])),
        moe_ep=tp * dp,
        max_num_seqs=draw(st.integers(1, 512)),
        max_num_batched_tokens=draw(st.sampled_from([128, 1024, 8192])),
    )
    workload = Workload(
        isl=draw(st.integers(1, 12000)),
        osl=draw(st.integers(1, 2000)),
        prefix_hit=draw(st.sampled_from([0.0, 0.5])),
        lengths=draw(st.sampled_from(list(Lengths))),
    )
    speculation = None
    if draw(st.booleans()):
        speculation = Speculation(
            drafts=draw(st.integers(1, 8)), acceptance=draw(st.floats(0.0, 0.95))
        )
    serving = Serving(backend=draw(st.sampled_from(["vllm", "sglang", "trtllm"])))
    return (
        draw(st.sampled_from(sorted(MODELS))),
        layout,
        workload,
        replace(serving, speculation=speculation),
    )


def run(
    name: str, layout: Layout, workload: Workload, serving: Serving = PLAIN, **options: object
) -> tuple[EstimateTable, Latencies]:
    table, group = LayoutTable.from_layouts([layout]), specs.group(nodes=64)
    concurrency = options.pop("concurrency", table.max_num_seqs)
    made = estimate(MODELS[name], group, table, workload, concurrency=concurrency, serving=serving)
    return made, latencies_of(
        MODELS[name],
        group,
        table,
        workload,
        state=made.state,
        concurrency=made.concurrency,
        running=made.running,
        serving=serving,
    )


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_percentiles_rise_and_means_are_the_estimate_s(case):
    _, _, workload, serving = case
    made, found = run(*case)
    for latency in (found.ttft, found.tpot, found.itl):
        _, *percentiles = figures(latency)
        assert percentiles == sorted(percentiles)
        assert percentiles[0] > 0.0
        assert np.isfinite(percentiles).all()
    assert found.ttft.mean[0] == pytest.approx(float(made.ttft_s[0]), rel=1e-6)
    assert found.tpot.mean[0] == pytest.approx(float(made.tpot_s[0]))
    accepted = 1.0 if serving.speculation is None else serving.speculation.accepted
    assert found.itl.mean[0] == pytest.approx(float(made.tpot_s[0]) * accepted)
    if workload.osl > 50 and serving.speculation is None:
        assert found.tpot.p50[0] <= 1.15 * found.tpot.mean[0]


@settings(max_examples=60, deadline=None)
@given(case=cases(), more=st.integers(2, 8))
def test_more_requests_in_flight_never_lower_a_percentile(case, more):
    name, layout, workload, serving = case
    # Equal lengths wait less for a slot the more of them there are, in the mean as well. Near
    # saturation by prompts all steps hold some, and a higher mean comes with a narrower spread.
    osl = max(workload.osl, 20)
    workload = replace(workload, osl=osl, isl=min(workload.isl, 20 * osl), lengths=Lengths.DRAWN)
    layout = replace(layout, max_num_seqs=4096, dp=1, moe_ep=layout.tp)
    layout = replace(layout, max_num_batched_tokens=max(layout.max_num_batched_tokens, 1024))
    few = run(name, layout, workload, serving, concurrency=8)[1]
    many = run(name, layout, workload, serving, concurrency=8 * more)[1]
    for statistic in (Statistic.P90, Statistic.P99):
        assert many.ttft.of(statistic)[0] >= few.ttft.of(statistic)[0] * 0.9
        assert many.tpot.of(statistic)[0] >= few.tpot.of(statistic)[0] * 0.9


def test_a_row_of_a_table_has_the_percentiles_of_the_row_alone():
    group, workload = specs.group(), Workload(isl=2000, osl=500)
    rows = [Layout(max_num_seqs=8), Layout(tp=4, moe_tp=4, max_num_seqs=96)]
    table = LayoutTable.from_layouts(rows)
    made = estimate(MODELS["dense"], group, table, workload, concurrency=table.max_num_seqs)
    whole = latencies_of(
        MODELS["dense"],
        group,
        table,
        workload,
        state=made.state,
        concurrency=made.concurrency,
        running=made.running,
    )
    for index, row in enumerate(rows):
        alone = latencies_at(MODELS["dense"], group, row, workload, estimates=made, index=index)
        for name in (f.name for f in fields(alone.ttft)):
            assert getattr(alone.ttft, name)[0] == pytest.approx(getattr(whole.ttft, name)[index])
            assert getattr(alone.tpot, name)[0] == pytest.approx(getattr(whole.tpot, name)[index])


def test_one_token_after_the_first_is_one_step_long():
    made, found = run("dense", Layout(max_num_seqs=32), Workload(isl=4000, osl=2))
    state = made.state
    assert found.tpot.p99[0] == pytest.approx(max(state.mixed_s[0], state.tpot_s[0]), rel=0.02)
    assert found.tpot.p50[0] <= found.tpot.p99[0]


def test_many_tokens_average_out():
    tails = []
    for osl in (20, 200, 2000):
        _, found = run("dense", Layout(max_num_seqs=32), Workload(isl=1000, osl=osl))
        tails.append(float(found.tpot.p99[0] / found.tpot.mean[0]))
    assert tails[0] > tails[1] > tails[2] > 1.0
    assert tails[2] < 1.1


def test_a_request_s_tpot_under_speculation_scatters_as_a_renewal_count():
    drafts, acceptance, tokens, count = 4, 0.7, 300, 20_000
    rng = np.random.default_rng(3)
    kept = 1 + np.cumprod(rng.random((count, tokens, drafts)) < acceptance, axis=2).sum(axis=2)
    steps = (np.cumsum(kept, axis=1) < tokens).sum(axis=1) + 1
    speculation = Speculation(drafts=drafts, acceptance=acceptance)
    _, found = run(
        "dense",
        Layout(max_num_seqs=1),
        Workload(isl=100, osl=tokens + 1),
        Serving(speculation=speculation),
    )
    for statistic, level in ((Statistic.P90, 0.9), (Statistic.P99, 0.99)):
        ratio = float(np.quantile(steps, level) / steps.mean())
        assert float(found.tpot.of(statistic)[0] / found.tpot.mean[0]) == pytest.approx(
            ratio, rel=0.02
        )


@pytest.mark.parametrize(("drafts", "acceptance"), [(1, 0.5), (3, 0.7), (8, 0.9), (2, 0.0)])
def test_the_variance_of_kept_tokens_is_that_of_a_cut_geometric_law(drafts, acceptance):
    chance = acceptance ** np.arange(drafts + 1)
    chance = chance - np.append(chance[1:], 0.0)  # of keeping exactly j drafts
    kept = np.arange(drafts + 1) + 1.0
    expected = float(chance @ kept**2 - (chance @ kept) ** 2)
    demand = Demand(
        **{f.name: column(1.0) for f in fields(Demand) if f.name not in ("queries", "accepted")},
        queries=column(drafts + 1),
        accepted=column(Speculation(drafts=drafts, acceptance=acceptance).accepted),
    )
    assert kept_variance(demand)[0] == pytest.approx(expected, abs=1e-6)


def test_time_between_tokens_is_a_step_with_or_without_prompts():
    made, found = run("dense", Layout(max_num_seqs=64), Workload(isl=2000, osl=100))
    state = made.state
    assert 0.1 < state.mixed_share[0] < 0.9
    assert found.itl.p50[0] == pytest.approx(state.decode_s[0], rel=1e-6) or found.itl.p50[
        0
    ] == pytest.approx(state.mixed_s[0], rel=1e-6)
    assert found.itl.p99[0] == pytest.approx(state.mixed_s[0], rel=1e-6)
