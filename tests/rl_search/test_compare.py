from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import InputError
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.workload import Slo, Workload
from rl_search.compare import cheapest, cheapest_for_rate, compare, fastest
from rl_search.planner import make_plan
from rl_search.request import PlanRequest


def request(cluster: str, /, **changes: object) -> PlanRequest:
    base = PlanRequest(
        model=get_model("llama-3.1-70b"),
        cluster=parse_cluster(cluster),
        workload=Workload(isl=1000, osl=200, rate=4.0),
        slo=Slo(tpot_s=0.05),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def outcomes():
    return compare([request("1xH100"), request("8xH100"), request("8xB200")])


def test_outcomes_keep_the_order_and_are_the_plans_of_each_cluster(outcomes):
    assert [outcome.name for outcome in outcomes] == ["1xH100", "8xH100", "8xB200"]
    for outcome in outcomes[1:]:
        alone = make_plan(outcome.request)
        assert outcome.result is not None
        assert outcome.result.plan == alone.plan


def test_a_cluster_on_which_nothing_fits_is_an_outcome_with_its_reason(outcomes):
    nothing = outcomes[0]
    assert nothing.best is None
    assert nothing.usd_per_million_tokens is None
    assert nothing.need() is None
    assert "memory" in nothing.reason
    assert "Nearest miss" in nothing.reason


def test_the_rate_is_carried_by_whole_replicas(outcomes):
    for outcome in outcomes[1:]:
        need, row = outcome.need(), outcome.best
        goodput = outcome.result.plan.main.expected.goodput_rps
        assert (need.replicas - 1) * goodput < 4.0 <= need.replicas * goodput
        assert need.devices == need.replicas * row.layout.devices_per_replica
        assert need.usd_per_hour == pytest.approx(need.devices * row.group.device.price_per_hour)


def test_winners_are_the_least_of_those_that_have_a_figure(outcomes):
    costs = {o.name: o.usd_per_million_tokens for o in outcomes[1:]}
    assert cheapest(outcomes).name == min(costs, key=costs.get)
    times = {o.name: float(o.best.estimates.tpot_s[o.best.index]) for o in outcomes[1:]}
    assert fastest(outcomes).name == min(times, key=times.get)
    assert cheapest(outcomes[:1]) is fastest(outcomes[:1]) is None


def test_a_device_without_a_price_has_no_cost_but_a_need():
    cluster = parse_cluster("8xH100")
    (group,) = cluster.groups
    free = replace(
        cluster, groups=(replace(group, device=replace(group.device, price_per_hour=None)),)
    )
    (outcome,) = compare([request("8xH100", cluster=free)])
    assert outcome.usd_per_million_tokens is None
    assert outcome.need().usd_per_hour is None
    assert cheapest([outcome]) is cheapest_for_rate([outcome]) is None
    assert fastest([outcome]) is outcome


def test_without_a_rate_there_is_no_need():
    (outcome,) = compare([request("8xH100", workload=Workload(isl=1000, osl=200))])
    assert outcome.need() is None


def test_a_contradiction_is_no_outcome():
    with pytest.raises(InputError, match="accepts at most"):
        compare([request("8xH100", workload=Workload(isl=10**6, osl=1))])


@settings(max_examples=15, deadline=None)
@given(price=st.floats(0.01, 100), rate=st.floats(0.01, 1e6))
def test_cost_follows_the_price_and_the_need_follows_the_rate(price, rate):
    cluster = parse_cluster("4xB200")
    (group,) = cluster.groups
    priced = replace(
        cluster, groups=(replace(group, device=replace(group.device, price_per_hour=price)),)
    )
    workload = Workload(isl=500, osl=100, rate=rate)
    model = get_model("llama-3.1-8b")
    (outcome,) = compare([request("4xB200", model=model, cluster=priced, workload=workload)])
    row, need = outcome.best, outcome.need()
    per_second = float(row.estimates.tokens_per_s_per_device[row.index])
    assert outcome.usd_per_million_tokens == pytest.approx(price / 3600 / per_second * 1e6)
    assert need.enough == (need.replicas <= outcome.result.plan.main.replicas.maximum)
    assert math.isfinite(need.usd_per_hour)
