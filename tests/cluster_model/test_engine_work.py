"""What tokens cost: `cluster.engine_work`, and what `cluster.planned_work` makes of a plan."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.costmodel.estimate import estimate
from cluster.engine_work import EngineWork, TokenPrices, by_tokens, shared_evenly
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import LayoutTable
from cluster.model.plan import (
    ClusterSection,
    LayoutSection,
    ModelSection,
    Plan,
    PoolSection,
    ReplicaBounds,
    SloSection,
    WorkloadSection,
)
from cluster.model.workload import Slo, Workload
from cluster.planned_work import planned_work
from cluster.routing import predicted_tokens
from rl_search.plan_writer import expectation

lengths = st.floats(0.0, 1e5)
amounts = st.floats(1e-9, 1e-2)


@st.composite
def works(draw):
    batches = sorted(draw(st.sets(st.integers(1, 512), min_size=1, max_size=5)))
    prices = tuple(
        TokenPrices(
            batch=float(batch),
            prompt_token_s=draw(amounts),
            output_token_s=draw(amounts),
            context_token_s=1e-9,
        )
        for batch in batches
    )
    return EngineWork(prices=prices, context=1000.0)


@given(works(), lengths, lengths, lengths, lengths)
def test_longer_requests_are_more_work(work, prompt, output, more_prompt, more_output):
    less = work.of(prompt_tokens=prompt, output_tokens=output)
    more = work.of(prompt_tokens=prompt + more_prompt, output_tokens=output + more_output)
    assert 0.0 <= less <= more


@given(works(), lengths, lengths, st.floats(1.0, 600.0))
def test_time_spent_adds_up_over_tokens(work, prompt, output, batch):
    both = work.spent_s(prompt_tokens=prompt, output_tokens=output, batch=batch)
    apart = work.spent_s(prompt_tokens=prompt, output_tokens=0.0, batch=batch)
    apart += work.spent_s(prompt_tokens=0.0, output_tokens=output, batch=batch)
    assert both == pytest.approx(apart)


@given(works(), st.floats(0.5, 1000.0))
def test_prices_between_batches_lie_between_those_known(work, batch):
    made = work.at(batch)
    known = [price.prompt_token_s for price in work.prices]
    assert min(known) * (1 - 1e-9) <= made.prompt_token_s <= max(known) * (1 + 1e-9)
    for price in work.prices:
        assert asdict(work.at(price.batch)) == pytest.approx(asdict(price))


@given(
    rate=st.floats(0.01, 1e3),
    prompt_share=st.floats(0.0, 1.0),
    context_share=st.floats(0.0, 1.0),
    prompt=st.integers(1, 100_000),
    output=st.integers(1, 10_000),
)
def test_a_replica_at_its_rate_is_busy_exactly(rate, prompt_share, context_share, prompt, output):
    price = shared_evenly(
        rate=rate,
        batch=8.0,
        prompt_share=prompt_share,
        context_share=context_share,
        prompt_tokens=prompt,
        output_tokens=output,
    )
    work = EngineWork(prices=(price,), context=0.0)
    assert rate * work.of(prompt_tokens=prompt, output_tokens=output) == pytest.approx(1.0)


def test_where_nothing_is_known_work_is_predicted_tokens():
    work = by_tokens(500.0)
    tokens = predicted_tokens(prompt_tokens=300, output_tokens=80)
    assert work.of(prompt_tokens=300, output_tokens=80) == pytest.approx(tokens / 500.0)


LAYOUT = LayoutSection(tp=2, moe_tp=2, max_num_seqs=64, max_num_batched_tokens=8192)
GROUP = parse_cluster("1x8xH100").groups[0]


def made(
    *, source="llama-3.1-8b", isl=1024, osl=256, expects=True, dims=None, goodput=None
) -> Plan:
    layout = LAYOUT.model_copy(update={"dims": dims or {}})
    expected = None
    if expects:
        found = estimate(
            get_model("llama-3.1-8b"),
            GROUP,
            LayoutTable.from_layouts([LAYOUT.to_layout(replicas=1)]),
            Workload(isl=isl, osl=osl),
            concurrency=48.0,
        )
        expected = expectation(found, 0, Slo())
        if goodput is not None:
            expected = expected.model_copy(update={"goodput_rps": goodput})
    pool = PoolSection(
        name="main",
        model=ModelSection(
            name="m", source=source, params=1, weight_bytes=1.0, max_context=131_072
        ),
        layout=layout,
        replicas=ReplicaBounds(),
        expected=expected,
    )
    return Plan(
        cluster=ClusterSection(spec="1x8xH100", device="h100", nodes=1, devices_per_node=8),
        workload=WorkloadSection(isl=isl, osl=osl),
        slo=SloSection(),
        pools=(pool,),
    )


def utilisation(plan: Plan, work: EngineWork, *, rate: float) -> float:
    return rate * work.of(prompt_tokens=plan.workload.isl, output_tokens=plan.workload.osl)


@pytest.mark.parametrize("goodput", [None, 3.0, 300.0])
@pytest.mark.parametrize("source", ["llama-3.1-8b", "nobody/knows-this"])
@pytest.mark.parametrize(("isl", "osl"), [(1024, 256), (64, 1500), (8000, 16), (500, 1)])
def test_the_plans_own_workload_at_its_goodput_is_utilisation_one(source, isl, osl, goodput):
    plan = made(source=source, isl=isl, osl=osl, goodput=goodput)
    rate = plan.main.expected.goodput_rps
    assert utilisation(plan, planned_work(plan.main, plan=plan), rate=rate) == pytest.approx(1.0)


def test_a_goodput_of_zero_is_no_division_by_it():
    plan = made(goodput=0.0)
    work = planned_work(plan.main, plan=plan)
    expected = plan.main.expected
    rate = expected.tokens_per_s_per_device * 2 / plan.workload.osl
    assert utilisation(plan, work, rate=rate) == pytest.approx(1.0)


def test_the_expectation_alone_says_what_the_cost_model_says():
    known = planned_work(made().main, plan=made())
    unknown = made(source="nobody/knows-this")
    alone = planned_work(unknown.main, plan=unknown)
    assert asdict(alone.planned) == pytest.approx(asdict(known.planned))
    assert len(alone.prices) == 1 < len(known.prices)


def test_operators_cut_one_by_one_are_priced_by_the_expectation():
    plan = made(dims={"qkv": "output"})
    assert len(planned_work(plan.main, plan=plan).prices) == 1


def test_without_an_expectation_the_cost_model_says_it():
    plan = made(expects=False)
    work = planned_work(plan.main, plan=plan)
    assert work.planned.batch == 64.0
    known = planned_work(made().main, plan=made())
    assert work.planned.prompt_token_s == pytest.approx(known.planned.prompt_token_s, rel=0.2)


def test_without_either_a_full_replica_is_turned_over():
    plan = made(source="nobody/knows-this", expects=False)
    work = planned_work(plan.main, plan=plan)
    each = predicted_tokens(prompt_tokens=1024, output_tokens=256)
    full = 64 * each
    assert utilisation(plan, work, rate=full / each / 10.0) == pytest.approx(1.0)


def test_an_output_token_costs_more_than_a_prompt_token_and_less_in_company():
    work = planned_work(made().main, plan=made())
    planned = work.planned
    assert planned.output_token_s > 3.0 * planned.prompt_token_s
    outputs = [price.output_token_s for price in work.prices]
    assert outputs == sorted(outputs, reverse=True)


def test_all_prices_can_be_scaled():
    work = by_tokens(100.0)
    twice = work.times(2.0).of(prompt_tokens=10, output_tokens=4)
    assert twice == pytest.approx(2.0 * work.of(prompt_tokens=10, output_tokens=4))
    assert replace(work, context=5.0).times(2.0).context == 5.0
