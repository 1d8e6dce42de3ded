"""A plan whose cost model is wrong by a factor of two, either way, under the live controller."""

import math

import pytest

from autoscaler.delivery_params import DeliveryParams
from autoscaler.params import ControllerParams, PoolParams, ScalingParams
from autoscaler.reasons import Action
from autoscaler.simulated import Steered
from cluster.engine_work import EngineWork, TokenPrices
from cluster.model.workload import Slo
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from tests.sim.build import PlainTimes, pool, request, setup

TIMES = PlainTimes()
PROMPT, OUTPUT, BATCH = 100, 50, 16
SLOTS = 64
RATE = 80.0  # requests/s
BELIEVED = DeliveryParams(least=1.0, most=1.0)
SLO = Slo(ttft_s=0.1, tpot_s=0.0125)  # which a replica keeps with its planned batch


def prices(batch):
    return TokenPrices(
        batch=float(batch),
        prompt_token_s=TIMES.prompt_s,
        output_token_s=TIMES.step_s / batch + TIMES.sequence_s,
        context_token_s=TIMES.context_s,
    )


TRUE = EngineWork(
    prices=tuple(prices(batch) for batch in (1, 2, 4, 8, BATCH)), context=PROMPT + OUTPUT / 2
)


BUSY = RATE * TRUE.of(prompt_tokens=PROMPT, output_tokens=OUTPUT)
RIGHT = range(math.ceil(BUSY / 0.8), math.ceil(BUSY / 0.6) + 1)  # coming from below, from above


def run(work: EngineWork, delivery: DeliveryParams, *, seconds=200):
    """(replicas last asked for, attainment, driver) of a steady load; two at first."""
    in_flight = SLOTS * (PROMPT + OUTPUT / 2) * 1.2
    each = work.of(prompt_tokens=PROMPT, output_tokens=OUTPUT)
    params = ControllerParams(
        pools=(
            PoolParams(
                pool="main",
                maximum=12,
                capacity_tokens_per_s=(PROMPT + OUTPUT / 2) * 1.2 / each,
                capacity_in_flight_tokens=in_flight,
                cold_start_s=5.0,
                work=work,
            ),
        ),
        delivery=delivery,
        tick_s=1.0,
        scaling=ScalingParams(down_delay_s=20.0),
    )
    driver = Steered(params, contexts={"main": 500}, output_cap=500)
    of = pool(
        2,
        work=work,
        times=TIMES,
        max_num_seqs=SLOTS,
        chunk=1024,
        kv_blocks=10_000,
        max_requests=SLOTS,
        max_tokens=in_flight,
    )
    rules = GatewayRules(expected_output=OUTPUT, max_queued=10**6, queue_wait_s=1e9)
    requests = [
        request(index / RATE, prompt=PROMPT, output=OUTPUT) for index in range(int(RATE * seconds))
    ]
    outcome = Simulation(setup(of, rules=rules, slo=SLO), driver=driver).run(requests)
    asked = [d.value for _, d in driver.decisions if d.action is Action.SCALE]
    return [2, *asked][-1], outcome.attainment, driver


def test_a_right_plan_needs_no_correction():
    replicas, attainment, driver = run(TRUE, DeliveryParams())
    assert replicas == RIGHT[0] == 4
    assert attainment > 0.9
    assert driver.gauges()["main measured/planned"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(("wrong", "without"), [(2.0, 8), (0.5, 2)])
def test_a_plan_that_is_wrong_by_two_ends_with_the_right_number_of_replicas(wrong, without):
    work = TRUE.times(wrong)
    replicas, attainment, driver = run(work, DeliveryParams())
    assert driver.gauges()["main measured/planned"] == pytest.approx(wrong, rel=0.2)
    assert replicas in RIGHT
    believing, their_attainment, _ = run(work, BELIEVED)
    assert believing == without
    assert without not in RIGHT
    assert attainment > 0.6  # before it has learnt, a plan that promises too much misses its SLO
    assert wrong > 1.0 or their_attainment < 0.1
    print(f"costs x {wrong}: {attainment:.1%} within the SLO, believed: {their_attainment:.1%}")
