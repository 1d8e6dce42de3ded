from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.need import (
    SCALING_POLICIES,
    Capacity,
    Demand,
    engine_work,
    replicas_for,
    token_load,
)
from tests.autoscaler.build import load

REPLICA = Capacity(tokens_per_s=1000.0, in_flight_tokens=8000.0)
tokens = st.floats(min_value=0.0, max_value=1e7)
replicas = st.floats(min_value=0.0, max_value=1e4)


def test_the_larger_of_busy_and_flight_counts():
    busy = Demand(busy=2.4, in_flight_tokens=100.0)
    flight = Demand(busy=0.01, in_flight_tokens=25_000.0)
    assert replicas_for(busy, REPLICA, utilisation=0.8) == 3
    assert replicas_for(flight, REPLICA, utilisation=0.8) == 4


def test_zero_needs_none_and_a_little_needs_one():
    assert replicas_for(Demand(busy=0.0, in_flight_tokens=0.0), REPLICA, utilisation=0.5) == 0
    assert replicas_for(Demand(busy=1e-5, in_flight_tokens=0.0), REPLICA, utilisation=0.5) == 1


@given(replicas, replicas, tokens, tokens)
def test_the_need_is_monotone(busy, more_busy, flight, more_flight):
    less = Demand(busy=busy, in_flight_tokens=flight)
    more = Demand(busy=busy + more_busy, in_flight_tokens=flight + more_flight)
    need = replicas_for(less, REPLICA, utilisation=0.8)
    assert need <= replicas_for(more, REPLICA, utilisation=0.8)
    assert need <= replicas_for(less, REPLICA, utilisation=0.6)


@given(replicas, tokens)
def test_the_answer_carries_the_load(busy, flight):
    demand = Demand(busy=busy, in_flight_tokens=flight)
    n = replicas_for(demand, REPLICA, utilisation=0.8)
    assert busy <= n * 0.8 * (1 + 1e-6) + 1e-6
    assert flight <= n * 0.8 * 8000.0 * (1 + 1e-6) + 1e-3


@pytest.mark.parametrize("name", sorted(SCALING_POLICIES))
@given(rate=tokens, queued=tokens)
def test_policies_agree_on_the_plans_own_workload(name, rate, queued):
    busy = SCALING_POLICIES[name](load(0.0, rate=rate, queued=queued), REPLICA)
    assert busy.arriving == pytest.approx(rate / 1000.0)
    assert busy.queued_s == pytest.approx(queued / 1000.0)


def test_only_one_of_them_sees_that_tokens_differ():
    """The same predicted tokens, as a prompt and as an answer that takes ten times as long."""
    prompts, answers = (replace(load(0.0, rate=500.0), arrival_work=work) for work in (0.2, 2.0))
    assert token_load(prompts, REPLICA) == token_load(answers, REPLICA)
    assert engine_work(answers, REPLICA).arriving == 10 * engine_work(prompts, REPLICA).arriving
