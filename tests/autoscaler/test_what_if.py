"""What another policy would have done with a log, and how both fare under its load."""

import math
from dataclasses import replace
from types import MappingProxyType

import pytest

from autoscaler import forecast
from autoscaler.closed_loop import closed_loop, scenario_of
from autoscaler.decision_log import Header, Tick, dump
from autoscaler.forecaster import Forecaster
from autoscaler.params import Mode, ScalingParams
from autoscaler.snapshot import Tier
from autoscaler.virtual import Scenario, run
from autoscaler.what_if import runs_of, what_if
from cluster.errors import ConfigError, InputError
from tests.autoscaler.build import load, params, size, snapshot

P = params(maximum=6)


def steps(t):
    return 3500.0 if 200.0 <= t < 500.0 else 700.0


@pytest.fixture(scope="module")
def log():
    scenario = Scenario(
        duration_s=900.0,
        arrival_tokens_per_s=steps,
        blind=((600.0, 630.0),),
        by_hand=((700.0, "main", 5),),
    )
    return run(P, scenario).log_lines()


@pytest.fixture(scope="module")
def runs(log):
    return runs_of(log, source="log")


def same(p):
    return p


def scaled(**changes):
    return lambda p: replace(p, scaling=replace(p.scaling, **changes))


def test_the_same_policy_differs_nowhere_and_has_the_same_figures(runs):
    found = what_if(runs, same)
    assert found.divergences == ()
    assert found.recorded == found.other
    assert found.ticks == 450
    recorded, other = closed_loop(runs, same)
    assert recorded == other


def test_replica_seconds_are_what_was_asked_for_times_how_long(runs, log):
    ticks = [tick for _, tick in runs[0].ticks]
    expected = sum(tick.snapshot.pools[0].target for tick in ticks) * P.tick_s
    assert what_if(runs, same).recorded["main"].replica_s == pytest.approx(expected)


def test_a_policy_that_plans_for_less_use_asks_for_more_and_has_less_over_capacity(runs):
    roomy = scaled(target_utilisation=0.5, down_utilisation=0.3)
    found = what_if(runs, roomy)
    assert found.other["main"].replica_s > found.recorded["main"].replica_s
    assert found.other["main"].over_tokens < found.recorded["main"].over_tokens
    assert found.other["main"].arrived_tokens == found.recorded["main"].arrived_tokens
    recorded, other = closed_loop(runs, roomy)
    assert other.replica_s > recorded.replica_s
    assert other.waiting_tokens <= recorded.waiting_tokens
    assert other.arrived_tokens == recorded.arrived_tokens


def test_the_first_difference_is_where_the_other_policy_would_have_acted(runs):
    slow = what_if(runs, scaled(up_delay_s=30.0))
    first = slow.divergences[0]
    assert [d.value for d in first.recorded] != [d.value for d in first.other]
    assert 200.0 <= first.now_s <= 210.0
    later = next(item for item in slow.divergences if item.other)
    assert later.now_s == pytest.approx(first.now_s + 26.0, abs=P.tick_s)


def test_replicas_of_the_other_policy_are_ready_a_cold_start_after_it_asks():
    # Recorded: one replica for ever, under a load for four; each tick two seconds.
    p = params(maximum=4, scaling=ScalingParams(max_step_up=3))
    advised = replace(p, mode=Mode.ADVISORY)
    lines = [dump(Header(params=advised))]
    for i in range(1, 31):
        seen = snapshot(2.0 * i, [size(2.0 * i)], [load(2.0 * i, rate=3100.0, flight=0.0)])
        lines.append(dump(Tick(snapshot=seen, decisions=(), tier=Tier.NORMAL)))
    found = what_if(runs_of(lines, source="log"), lambda recorded: p)
    asked_s = found.divergences[0].now_s
    assert [d.value for d in found.divergences[0].other] == [4]
    over_s = asked_s + p.main.cold_start_s  # one ready replica until then, four after
    assert found.other["main"].over_tokens == pytest.approx(2100.0 * over_s, abs=2100.0 * 2 * 2.0)
    assert found.recorded["main"].over_tokens == pytest.approx(2100.0 * 60.0)


def test_a_forecaster_that_knows_the_surge_asks_before_it_comes(runs, monkeypatch):
    def knowing(history, horizon_s, coefficients):
        return steps(history.newest_s + horizon_s) / P.main.capacity_tokens_per_s

    table = {**forecast.FORECASTERS, "knowing": Forecaster(predict=knowing)}
    monkeypatch.setattr(forecast, "FORECASTERS", MappingProxyType(table))
    change = lambda p: replace(p, forecast=replace(p.forecast, method="knowing"))  # noqa: E731
    first = what_if(runs, change).divergences[0]
    assert first.recorded == ()
    assert 200.0 - P.main.cold_start_s <= first.now_s < 200.0
    recorded, other = closed_loop(runs, change)
    assert other.waiting_tokens < recorded.waiting_tokens


def test_runs_of_one_log_are_summed(log):
    once, twice = (what_if(runs_of(lines, source="log"), same) for lines in (log, [*log, *log]))
    assert twice.ticks == 2 * once.ticks
    assert twice.other["main"].replica_s == pytest.approx(2 * once.other["main"].replica_s)
    assert twice.other["main"].changes == 2 * once.other["main"].changes


def test_a_gap_in_the_log_counts_as_a_few_ticks(log):
    lines = [line for i, line in enumerate(log) if not 100 < i < 400]
    found = what_if(runs_of(lines, source="log"), same)
    assert found.recorded["main"].replica_s < 900.0 * 4


def test_unknown_load_is_no_load_and_is_not_offered():
    lines = [dump(Header(params=P))]
    for i, rate in enumerate((math.nan, 500.0, math.nan, math.nan), start=1):
        seen = snapshot(2.0 * i, [size(2.0 * i)], [load(2.0 * i, rate=rate, flight=0.0)])
        lines.append(dump(Tick(snapshot=seen, decisions=(), tier=Tier.NORMAL)))
    (only,) = runs_of(lines, source="log")
    assert what_if([only], same).recorded["main"].arrived_tokens == pytest.approx(500.0 * 2.0)
    scenario = scenario_of(only)
    assert scenario is not None
    assert {scenario.arrival_tokens_per_s(t) for t in (0.5, 2.0, 4.0, 7.0)} == {500.0}


def test_a_log_without_load_has_no_course():
    lines = [dump(Header(params=P))]
    lines.append(
        dump(Tick(snapshot=snapshot(2.0, [size(2.0)], []), decisions=(), tier=Tier.NORMAL))
    )
    both = closed_loop(runs_of(lines, source="log"), same)
    assert [course.duration_s for course in both] == [0.0, 0.0]


def test_a_snapshot_that_cannot_be_used_names_its_line(log):
    bad = [*log[:5], log[5].replace('"pool":"main"', '"pool":"dark"', 1), *log[6:]]
    with pytest.raises(InputError, match="line 6"):
        what_if(runs_of(bad, source="x.jsonl"), same, source="x.jsonl")


def test_a_change_that_cannot_work_is_a_config_error(runs):
    with pytest.raises(ConfigError, match="up_delay_s"):
        what_if(runs, scaled(up_delay_s=-1.0))
