import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.need import SCALING_POLICIES, Capacity, Demand, token_load

REPLICA = Capacity(tokens_per_s=1000.0, in_flight_tokens=8000.0)
tokens = st.floats(min_value=0.0, max_value=1e7)


def test_the_larger_of_rate_and_flight_counts():
    rate = Demand(tokens_per_s=2400.0, in_flight_tokens=100.0)
    flight = Demand(tokens_per_s=10.0, in_flight_tokens=25_000.0)
    assert token_load(rate, REPLICA, utilisation=0.8) == 3
    assert token_load(flight, REPLICA, utilisation=0.8) == 4


def test_zero_needs_none_and_a_little_needs_one():
    assert token_load(Demand(tokens_per_s=0.0, in_flight_tokens=0.0), REPLICA, utilisation=0.5) == 0
    assert (
        token_load(Demand(tokens_per_s=0.01, in_flight_tokens=0.0), REPLICA, utilisation=0.5) == 1
    )


@pytest.mark.parametrize("name", sorted(SCALING_POLICIES))
@given(tokens, tokens, tokens, tokens)
def test_every_policy_is_monotone(name, rate, more_rate, flight, more_flight):
    policy = SCALING_POLICIES[name]
    less = Demand(tokens_per_s=rate, in_flight_tokens=flight)
    more = Demand(tokens_per_s=rate + more_rate, in_flight_tokens=flight + more_flight)
    assert policy(less, REPLICA, utilisation=0.8) <= policy(more, REPLICA, utilisation=0.8)
    assert policy(less, REPLICA, utilisation=0.8) <= policy(less, REPLICA, utilisation=0.6)


@pytest.mark.parametrize("name", sorted(SCALING_POLICIES))
@given(tokens, tokens)
def test_the_answer_carries_the_load(name, rate, flight):
    demand = Demand(tokens_per_s=rate, in_flight_tokens=flight)
    n = SCALING_POLICIES[name](demand, REPLICA, utilisation=0.8)
    assert rate <= n * 0.8 * 1000.0 * (1 + 1e-6) + 1e-3
    assert flight <= n * 0.8 * 8000.0 * (1 + 1e-6) + 1e-3
