"""The controller against the fluid pools: what an operator would see, in virtual time."""

from dataclasses import replace
from itertools import pairwise

import pytest

from autoscaler.decision_log import Tick
from autoscaler.params import Mode, ScalingParams
from autoscaler.reasons import Action
from autoscaler.snapshot import Tier
from autoscaler.virtual import Effects, Scenario, run
from cluster.errors import ConfigError, UnknownNameError
from tests.autoscaler.build import of, params


def ticks(result):
    return [record for record in result.records if isinstance(record, Tick)]


def scales(result, pool="main"):
    return [d.value for d in of(ticks(result), Action.SCALE) if d.pool == pool]


def tier_moves(result):
    return [d.value for d in of(ticks(result), Action.TIER)]


def surge(low, high, *, start_s=60.0, end_s=360.0):
    return lambda t: high if start_s <= t < end_s else low


SURGE = Scenario(duration_s=1200.0, arrival_tokens_per_s=surge(300.0, 4500.0))


def test_surge_then_calm_one_two_one_replicas_up_to_shed_and_back():
    result = run(params(maximum=2), SURGE)
    assert scales(result) == [2, 1]
    assert tier_moves(result) == [1, 2, 3, 4, 3, 2, 1, 0]
    shed = next(s for s in result.samples if s.tier is Tier.SHED)
    assert shed.ready["main"] == 2  # the ceiling is reached first
    end = result.samples[-1]
    assert (end.tier, end.target["main"], end.queued_tokens["main"]) == (Tier.NORMAL, 1, 0.0)


def test_surge_with_a_light_pool_warms_it_and_lets_it_go():
    p = params(maximum=2, light=True, scaling=ScalingParams(to_zero_delay_s=120.0))
    result = run(p, replace(SURGE, duration_s=1500.0))
    assert scales(result, "light")[0] == 1
    assert scales(result, "light")[-1] == 0
    warm = next(s for s in result.samples if s.target["light"] == 1)
    moved = next(s for s in result.samples if s.tier is Tier.LIGHT_MODEL)
    assert warm.time_s < moved.time_s
    assert result.pools["light"].finished_tokens > 0.0


@pytest.mark.parametrize("rate", [0.0, 100.0, 700.0, 790.0, 810.0, 1200.0, 1610.0, 2400.0, 3100.0])
def test_constant_load_settles_and_does_not_flap(rate):
    result = run(params(), Scenario(duration_s=1800.0, arrival_tokens_per_s=lambda _: rate))
    targets = [s.target["main"] for s in result.samples]
    changes = [b - a for a, b in pairwise(targets) if a != b]
    # A step on an empty service may overshoot while the queue of the cold start drains, once.
    settled = targets[len(targets) // 3 :]
    assert len({*settled}) <= 2
    assert sum(1 for a, b in pairwise(settled) if a != b) <= 1
    assert sum(1 for a, b in pairwise(changes) if a * b < 0) <= 1
    assert result.samples[-1].queued_tokens["main"] == 0.0
    assert rate / 0.8 <= 1000.0 * targets[-1] or targets[-1] == 4


@pytest.mark.parametrize("rate", [2100.0, 2600.0, 3000.0, 4000.0, 8000.0])
@pytest.mark.parametrize("light", [False, True])
def test_permanent_overload_probes_but_does_not_oscillate(rate, light):
    p = params(maximum=2, light=light)
    result = run(p, Scenario(duration_s=3600.0, arrival_tokens_per_s=lambda _: rate))
    late = [s.tier for s in result.samples if s.time_s >= 600.0]
    moves = sum(a != b for a, b in pairwise(late))
    assert moves <= 2 * 3000.0 / p.tiers.probe_s + 1  # at most one probe down and up again
    assert scales(result)[:1] == [2]
    assert scales(result).count(1) == 0  # relieved by a tier, the pool keeps its replicas


def test_load_that_goes_away_goes_to_the_minimum():
    result = run(params(), Scenario(duration_s=1500.0, arrival_tokens_per_s=surge(0.0, 2500.0)))
    assert max(s.target["main"] for s in result.samples) >= 3
    assert result.samples[-1].target["main"] == 1


def test_replicas_changed_by_hand_come_back():
    scenario = Scenario(
        duration_s=900.0,
        arrival_tokens_per_s=lambda _: 1700.0,
        by_hand=((400.0, "main", 1),),
    )
    result = run(params(), scenario)
    at = {s.time_s: s.target["main"] for s in result.samples}
    assert at[398.0] == 3
    after = [s.target["main"] for s in result.samples if 400.0 < s.time_s < 500.0]
    assert after[0] == 1
    assert max(after) >= 3
    assert result.samples[-1].target["main"] == 3


def test_blindness_changes_no_replica_whatever_the_load_does():
    scenario = Scenario(
        duration_s=600.0,
        arrival_tokens_per_s=surge(500.0, 3000.0, start_s=130.0, end_s=280.0),
        blind=((120.0, 300.0),),
    )
    result = run(params(), scenario)
    blind = [s.target["main"] for s in result.samples if 110.0 < s.time_s < 300.0]
    assert set(blind) == {1}


def test_advice_is_not_carried_out():
    result = run(params(mode=Mode.ADVISORY), SURGE)
    assert {s.target["main"] for s in result.samples} == {1}
    assert scales(result)[0] == 4


def test_tokens_are_conserved_in_the_pools():
    result = run(params(maximum=2, light=True), SURGE)
    for pool in result.pools.values():
        inside = pool.in_flight_tokens + pool.queued_tokens
        assert pool.arrived_tokens == pytest.approx(pool.finished_tokens + inside)


def test_a_run_repeats_exactly():
    assert run(params(), SURGE).log_lines() == run(params(), SURGE).log_lines()


def test_impossible_scenarios_are_refused():
    with pytest.raises(ConfigError, match="longer than a tick"):
        run(params(), replace(SURGE, dt_s=5.0))
    with pytest.raises(UnknownNameError):
        run(params(), replace(SURGE, by_hand=((1.0, "light", 1),)))
    with pytest.raises(ConfigError):
        Effects(shed=0.0)
    with pytest.raises(ConfigError):
        replace(SURGE, duration_s=0.0)
