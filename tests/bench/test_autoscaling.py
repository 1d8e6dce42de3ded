"""The rivals and the clairvoyant schedule on small worlds whose answers are known."""

import numpy as np
import pytest

from bench.autoscaling import equal_hours
from bench.autoscaling_parts.clairvoyant import cheapest, clairvoyant
from bench.autoscaling_parts.dynamo_planner import DynamoPlanner
from bench.autoscaling_parts.fluid_world import FluidWorld, Seconds, late_tokens
from bench.autoscaling_parts.known_rate import busy_by_rate, cheapest_known_rate
from bench.autoscaling_parts.ours import ours, params_of
from bench.autoscaling_parts.request_world import RequestWorld
from bench.autoscaling_parts.serve_policy import ServePolicy
from bench.autoscaling_parts.token_policy import TokenPolicy
from bench.autoscaling_parts.world import Constant, Run, Sustained
from cluster.model.workload import Slo
from cluster.pool_ledger import Traffic
from cluster.sim.driver import PoolFacts
from cluster.sim.replica import SimReport
from cluster.traces.request import TraceRequest
from tests.sim.build import pool

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, at import
CARRIES = Sustained(requests_per_s=10.0, tokens_per_s=1000.0, in_flight_tokens=5000.0)


def fluid(requests_per_s, *, initial=2, most=12):
    rates = np.array(requests_per_s, dtype=float)
    return FluidWorld(
        seconds=Seconds(
            requests=rates, prompt_tokens=rates * 50.0, output_tokens=rates * (200.0 / 3.0)
        ),
        sustained=CARRIES,
        start_s=40.0,
        devices=4,
        initial=initial,
        most=most,
        window_s=60.0,
    )


def facts(now_s, *, ready, target=None, running=0, tokens=0.0):
    return PoolFacts(
        name="main",
        target=ready if target is None else target,
        ready=ready,
        pending=0,
        reports=(SimReport("main/0", now_s, running, 0, 0.0),),
        traffic=Traffic(
            arrival_tokens_per_s=0.0,
            in_flight_tokens=tokens,
            queued_tokens=0.0,
            arrival_work=0.0,
            in_flight_work=0.0,
            queued_work=0.0,
            queued_requests=0,
            oldest_wait_s=0.0,
        ),
    )


def asked(policy, *, seconds, **pool):
    """What a policy asks for at each second of a constant situation."""
    return [policy.replicas(facts(float(now), **pool), float(now)) for now in range(seconds)]


def test_serve_waits_30_s_and_then_asks_for_two_ongoing_requests_a_replica():
    numbers = asked(ServePolicy(most=40), seconds=40, ready=2, running=20)
    assert numbers.index(10) == 30
    assert set(numbers[:30]) == {2}


def test_serve_goes_down_after_ten_minutes():
    numbers = asked(ServePolicy(most=40), seconds=620, ready=10, running=4)
    assert numbers.index(2) == 600


def test_serve_keeps_to_its_most():
    assert max(asked(ServePolicy(most=7), seconds=40, ready=2, running=90)) == 7


def test_tokens_over_target_at_most_double_the_replicas():
    assert asked(TokenPolicy(CARRIES), seconds=1, ready=2, tokens=40_000.0) == [4]


def test_tokens_within_a_tenth_of_the_target_change_nothing():
    assert asked(TokenPolicy(CARRIES), seconds=400, ready=2, tokens=7_700.0) == [2] * 400


def test_tokens_below_target_go_down_only_after_five_minutes():
    numbers = asked(TokenPolicy(CARRIES), seconds=320, ready=4, tokens=4_000.0)
    assert set(numbers[:300]) == {4}
    assert numbers[300] == 2  # halved at most


def test_the_planner_asks_for_what_its_engines_profile_says():
    policy = DynamoPlanner(lambda prompt, output: 1000.0 / (prompt + output))
    for now in range(181):
        policy.saw(5.0, 500.0, 500.0)
        replicas = policy.replicas(facts(float(now), ready=1), float(now))
    assert replicas == 2  # 5.03 requests/s of 200 tokens each, 5 a replica


def test_late_are_those_that_were_not_inside_in_time():
    arrived, admitted = np.cumsum([4.0, 4.0, 0.0, 0.0]), np.array([4.0, 5.0, 6.0, 8.0])
    assert late_tokens(arrived, admitted, steps=1).tolist() == [0.0, 2.0, 0.0, 0.0]


def test_dynamic_programming_finds_the_cheapest_of_all_schedules():
    losses = np.array([[9.0, 5.0, 0.0], [9.0, 0.0, 0.0], [9.0, 7.0, 0.0], [9.0, 1.0, 0.0]])

    def cost(numbers):
        before = (1, *numbers[:-1])
        starts = sum(max(0, after - was) for was, after in zip(before, numbers, strict=True))
        missed = sum(losses[window, number] for window, number in enumerate(numbers))
        return 10.0 * sum(numbers) + 15.0 * starts + 3.0 * missed

    every = [(a, b, c, d) for a in (1, 2) for b in (1, 2) for c in (1, 2) for d in (1, 2)]
    found = cheapest(losses, window_s=10.0, start_s=15.0, initial=1, price=3.0)
    assert cost(found.replicas) == min(map(cost, every))


def test_a_gap_shorter_than_a_cold_start_is_bridged():
    losses = np.array([[9e9, 9e9, 0.0], [9e9, 0.0, 0.0], [9e9, 9e9, 0.0]])
    for window_s, replicas in ((30.0, (2, 2, 2)), (50.0, (2, 1, 2))):
        assert cheapest(losses, window_s=window_s, start_s=40.0, initial=2, price=1.0).replicas == (
            replicas
        )


def test_the_clairvoyant_starts_ahead_of_a_step_and_costs_least():
    world = fluid([15.0] * 600 + [45.0] * 600 + [15.0] * 600)
    schedule, best = clairvoyant(world)
    assert best.attainment >= 0.99
    assert schedule.at(700.0) >= 4
    asked_s = next(at_s for at_s, replicas in best.targets if replicas > 2)
    assert asked_s < 600.0
    for rival in (
        ours(params_of(world, held_tokens=20_000.0)),
        ServePolicy(most=world.most),
        Constant(5),
    ):
        run = world.run(rival)
        assert run.attainment < 0.99 or run.gpu_hours > best.gpu_hours


@pytest.mark.parametrize("rate", [2.0, 8.9, 9.1, 17.3, 26.0, 44.0])
def test_ours_settles_under_constant_load(rate):
    world = fluid([rate] * 2400)
    run = world.run(ours(params_of(world, held_tokens=20_000.0)))
    assert sum(at_s > 600.0 for at_s, _ in run.targets) <= 1
    assert rate <= 0.8 * 10.0 * run.targets[-1][1]


def test_who_knows_the_rate_but_not_the_next_pays_for_the_jumps():
    world = fluid(([15.0] * 600 + [25.0] * 600) * 3)
    assert busy_by_rate(world).tolist() == [1.5, 2.5] * 3
    multiple, known = cheapest_known_rate(world)
    _, best = clairvoyant(world)
    assert known.attainment >= 0.99
    assert multiple * 1.5 > 2.0  # what it holds is enough for the jump
    assert known.gpu_hours > best.gpu_hours


def test_both_worlds_count_what_a_constant_pool_costs():
    world = fluid([15.0] * 360)
    run = world.run(Constant(2))
    assert run.gpu_hours == pytest.approx(2 * 4 * 0.1)
    assert run.attainment == 1.0
    assert run.changes_per_hour == 0.0


def test_too_few_replicas_miss_and_more_never_miss_more():
    world = fluid([45.0] * 360)
    missed = [float(world.missed(replicas, range(6)).sum()) for replicas in range(1, 7)]
    assert missed == sorted(missed, reverse=True)
    assert missed[0] > 0.8 * 45.0 * 360.0
    assert missed[-1] == 0.0


def test_a_window_simulated_request_by_request_misses_less_with_more_replicas():
    requests = [TraceRequest(index / 4.0, 200, 40) for index in range(240)]
    world = RequestWorld(
        requests=requests,
        pool=pool(),
        slo=Slo(ttft_s=1.0, tpot_s=0.1),
        sustained=CARRIES,
        initial=1,
        most=4,
    )
    assert world.arrived().sum() == len(requests)
    few, many = world.missed(1, [0, 1]), world.missed(4, [0, 1])
    assert (many <= few).all()
    assert world.run(Constant(4)).attainment >= world.run(Constant(1)).attainment


def test_equal_hours_finds_the_target_that_costs_as_much():
    def run(target):
        return Run(attainment=1.0, gpu_hours=100.0 / target, duration_s=3600.0, targets=((0.0, 1),))

    target, found = equal_hours(run, 5.0)
    assert found.gpu_hours == pytest.approx(5.0, rel=0.1)
    assert target == pytest.approx(20.0, rel=0.1)
