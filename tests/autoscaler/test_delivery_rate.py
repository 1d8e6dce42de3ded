"""Measured over predicted speed of replicas."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.delivery_params import DeliveryParams
from autoscaler.delivery_rate import Delivery, delivered, measure
from autoscaler.snapshot import ReplicaObservation
from cluster.engine_work import EngineWork, TokenPrices
from cluster.errors import ConfigError

PARAMS = DeliveryParams()
WORK = EngineWork(
    prices=(
        TokenPrices(batch=16.0, prompt_token_s=1e-4, output_token_s=1e-3, context_token_s=0.0),
    ),
    context=100.0,
)


def report(at_s, *, prompt=0, output=0, running=16, name="a"):
    return ReplicaObservation(
        replica_id=name,
        observed_s=at_s,
        running=running,
        waiting=0,
        kv_usage=0.5,
        prompt_tokens=prompt,
        output_tokens=output,
    )


def steady(speed, *, seconds, running=16, names=("a",), start=None, from_s=0):
    """Replicas that do `speed` times what is planned: 2,000 prompt tokens and 800 output tokens."""
    found = start or Delivery()
    for second in range(from_s, from_s + seconds + 1):
        reports = [
            report(
                float(second),
                prompt=round(2000 * speed * second),
                output=round(800 * speed * second),
                running=running,
                name=name,
            )
            for name in names
        ]
        found = measure(found, reports, work=WORK, params=PARAMS)
    return found


def ratio(delivery):
    return delivered(delivery, PARAMS)


def test_without_a_measurement_the_plan_is_believed():
    assert ratio(Delivery()) == 1.0
    assert ratio(measure(Delivery(), [report(1.0)], work=WORK, params=PARAMS)) == 1.0


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_what_replicas_deliver_is_learnt(speed):
    assert ratio(steady(speed, seconds=1500)) == pytest.approx(speed, rel=0.15)


def test_several_replicas_teach_sooner():
    one, four = steady(0.5, seconds=60), steady(0.5, seconds=60, names=("a", "b", "c", "d"))
    assert ratio(four) < ratio(one) < 1.0


def test_a_replica_with_little_to_do_teaches_nothing():
    assert ratio(steady(0.1, seconds=100, running=1)) == 1.0


def test_a_small_batch_is_slower_and_that_is_planned():
    """Half the batch shares a step that lasts as long: half the output is what is expected."""
    found = Delivery()
    for second in range(200):
        output = round(400 * second * (1 / (2 * 0.4)))  # 500 a second at 8 sequences: the clock
        seen = [report(float(second), output=output, running=8)]
        found = measure(found, seen, work=WORK, params=PARAMS)
    assert ratio(found) == pytest.approx(1.0, abs=0.01)


def test_a_replica_that_makes_nothing_is_not_slow_but_counts_when_it_goes_on():
    learnt = steady(1.0, seconds=100)
    stuck = learnt
    for second in range(101, 110):
        seen = [report(float(second), prompt=200_000, output=80_000)]
        stuck = measure(stuck, seen, work=WORK, params=PARAMS)
    assert ratio(stuck) == ratio(learnt)
    going_on = [report(110.0, prompt=202_000, output=80_800)]
    after = measure(stuck, going_on, work=WORK, params=PARAMS)
    assert after.spent_s == pytest.approx(learnt.spent_s * 0.5 ** (10 / 300) + 10.0)


def test_a_restarted_replica_counts_anew():
    learnt = steady(1.0, seconds=100)
    again = measure(learnt, [report(101.0, prompt=50, output=5)], work=WORK, params=PARAMS)
    assert ratio(again) == ratio(learnt)


def test_a_report_seen_twice_teaches_once():
    once = steady(2.0, seconds=50)
    last = once.reports
    assert measure(once, last, work=WORK, params=PARAMS) == once


def test_nothing_is_learnt_where_prices_are_unknown():
    seen = [report(1.0), report(2.0, output=1)]
    assert measure(Delivery(), seen, work=None, params=PARAMS) == Delivery()


def test_a_drift_is_followed():
    slow = steady(0.5, seconds=1000)
    assert ratio(slow) < 0.6
    after = steady(1.0, seconds=1000, start=slow, from_s=2000)
    assert ratio(after) > 0.9


counts = st.integers(0, 10**6)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 1e5), counts, counts, st.integers(0, 64), st.sampled_from("abc")),
        max_size=30,
    )
)
def test_it_stays_within_its_bounds_whatever_is_reported(seen):
    found = Delivery()
    for at_s, prompt, output, running, name in seen:
        reports = [report(at_s, prompt=prompt, output=output, running=running, name=name)]
        found = measure(found, reports, work=WORK, params=PARAMS)
        assert PARAMS.least <= ratio(found) <= PARAMS.most


def test_bounds_of_one_believe_the_plan():
    believed = replace(PARAMS, least=1.0, most=1.0)
    assert delivered(steady(0.5, seconds=500), believed) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [("least", 1.5), ("least", 0.0), ("most", 0.5), ("half_life_s", 0.0), ("prior_s", 300.0)],
)
def test_impossible_parameters_are_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        DeliveryParams(**{field: value})
