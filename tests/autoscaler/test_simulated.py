"""The trace simulator under the live controller: the same decisions, and what they lead to."""

import asyncio
import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Header, Tick, dump
from autoscaler.fault_params import FaultParams
from autoscaler.params import (
    ControllerParams,
    Mode,
    PoolParams,
    ScalingParams,
    TierParams,
)
from autoscaler.reasons import Action
from autoscaler.replay import replay
from autoscaler.simulated import SHED, Steered, snapshot_of
from autoscaler.snapshot import Tier
from cluster.engine_work import by_tokens
from cluster.pool_ledger import Traffic
from cluster.priority import Priority
from cluster.sim.driver import PoolFacts
from cluster.sim.failures import Failure, Fault
from cluster.sim.replica import SimReport
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from serving.control.controller_actor import ControllerActor, ControllerSpec
from serving.control.observe import Heard, snapshot
from serving.control.scaler import DeploymentState
from serving.messages import GatewayReport, PoolLoad, ReplicaReport
from tests.sim.build import pool, request, setup

# One replica of the test pool: 8 sequences, about 12 ms a step, requests of 20 + 20 tokens.
IN_FLIGHT = 8 * 36.0
RATE = IN_FLIGHT / 0.26
WORK = by_tokens(RATE)


def params(*, minimum=1, maximum=6, light=False, mode=Mode.ACTIVE, **tiers) -> ControllerParams:
    pools = [
        PoolParams(
            pool=name,
            minimum=least,
            maximum=most,
            capacity_tokens_per_s=RATE,
            capacity_in_flight_tokens=IN_FLIGHT,
            cold_start_s=5.0,
        )
        for name, least, most in (("main", minimum, maximum), ("light", 0, 2))
    ]
    return ControllerParams(
        pools=tuple(pools if light else pools[:1]),
        tick_s=1.0,
        mode=mode,
        scaling=ScalingParams(down_delay_s=30.0, to_zero_delay_s=120.0),
        tiers=TierParams(**{"leave_s": 10.0, "probe_s": 30.0, **tiers}),
    )


def steady(rate, seconds, *, start_s=0.0, priority=Priority.STANDARD, output=20):
    count = int(rate * seconds)
    return [
        request(start_s + index / rate, prompt=20, output=output, priority=priority)
        for index in range(count)
    ]


def run(requests, p, *, replicas=1, light=False, write=None, rules=None, **more):
    driver = Steered(p, contexts={"main": 500, "light": 500}, output_cap=8, write=write)
    pools = [pool(replicas, max_requests=8, max_tokens=IN_FLIGHT, work=WORK)]
    if light:
        pools.append(pool(0, name="light", max_requests=8, max_tokens=IN_FLIGHT, work=WORK))
    made = setup(*pools, rules=rules or GatewayRules(expected_output=20), **more)
    simulation = Simulation(made, driver=driver, keep=True)
    return simulation, simulation.run(requests), driver


def scaled(driver, name="main"):
    return [
        (at_s, d.value)
        for at_s, d in driver.decisions
        if d.action is Action.SCALE and d.pool == name
    ]


def test_a_surge_of_five_times_is_met_with_replicas_and_they_go_again():
    requests = steady(15, 60) + steady(75, 60, start_s=60) + steady(15, 180, start_s=120)
    _, outcome, driver = run(requests, params())
    up = [value for at_s, value in scaled(driver) if 60 <= at_s < 120]
    assert max(up) >= 3
    assert min(at_s for at_s, value in scaled(driver) if value > 1) < 75
    assert scaled(driver)[-1][1] == 1
    assert outcome.unfinished == 0
    assert outcome.replicas["main"][0] >= 3
    assert outcome.replicas["main"][1] < 3.0  # on average


def test_a_surge_beyond_the_ceiling_degrades_and_recovers():
    requests = steady(15, 40) + steady(75, 90, start_s=40) + steady(5, 120, start_s=130)
    requests += steady(1, 240, start_s=0, priority=Priority.VIP)
    requests.sort(key=lambda r: r.arrival_s)
    simulation, outcome, driver = run(requests, params(maximum=1))
    tiers = [d.value for _, d in driver.decisions if d.action is Action.TIER]
    assert max(tiers) == Tier.SHED
    assert tiers[-1] == Tier.NORMAL
    assert outcome.record.refused[SHED] > 0
    assert outcome.record.events["max-tokens=8"] > 0
    # VIPs are shortened, never refused.
    vips = {number for number, r in enumerate(requests) if r.priority is Priority.VIP}
    done = {finished.number for finished in simulation.record.requests}
    assert vips <= done


def test_tier_three_moves_traffic_to_the_light_pool_and_lets_it_sleep_again():
    requests = steady(60, 90) + steady(2, 400, start_s=90)
    _, outcome, driver = run(requests, params(maximum=1, light=True), light=True)
    assert outcome.record.events["light-model"] > 0
    assert outcome.replicas["light"][0] >= 1
    assert scaled(driver, "light")[-1][1] == 0


def test_half_an_hour_of_silence_scales_to_the_minimum_and_stays():
    requests = steady(30, 60) + steady(30, 30, start_s=1900)
    _, outcome, driver = run(requests, params(minimum=0))
    quiet = [(at_s, value) for at_s, value in scaled(driver) if 60 < at_s < 1900]
    assert quiet[-1][1] == 0  # zero traffic is an observation, not a missing one
    assert [value for _, value in quiet] == sorted((v for _, v in quiet), reverse=True)
    assert outcome.record.completed + sum(outcome.record.refused.values()) == len(requests)
    assert outcome.replicas["main"][1] < 1.0


def test_a_replica_that_hangs_behind_its_reports_is_found_by_its_silence_and_replaced():
    requests = steady(30, 120)
    hangs = Failure(kind=Fault.HANG, at_s=30.0, pool="main", number=0, for_s=3600.0)
    _, outcome, driver = run(requests, params(minimum=2), replicas=2, failures=(hangs,))
    restarts = [(at_s, d) for at_s, d in driver.decisions if d.action is Action.RESTART]
    ((at_s, decision),) = restarts
    assert decision.subject == "main/0"
    assert "owes a token" in decision.reason
    assert 30.0 + FaultParams().stall_s <= at_s <= 60.0
    assert outcome.record.events["replicas restarted"] == 1
    broken = outcome.record.refused["broken mid-stream by a lost replica"]
    assert outcome.record.completed + broken == len(requests)


def test_one_that_is_slow_is_not_taken_for_one_that_hangs():
    slow = Failure(kind=Fault.SLOW, at_s=30.0, pool="main", number=0, factor=50.0)
    _, _, driver = run(steady(30, 120), params(minimum=2), replicas=2, failures=(slow,))
    assert not [d for _, d in driver.decisions if d.action is Action.RESTART]


def test_a_frozen_replica_is_replaced_without_a_tier_for_it():
    requests = steady(30, 120)
    _, outcome, driver = run(
        requests,
        params(minimum=2),
        replicas=2,
        failures=(Failure(kind=Fault.FREEZE, at_s=30.0, pool="main", number=0),),
    )
    assert outcome.record.events["replicas hit: freeze"] == 1
    assert (
        max(t for t in [0, *(d.value for _, d in driver.decisions if d.action is Action.TIER)]) == 0
    )
    late = [r for r in outcome.record.requests if r.arrival_s > 60]
    assert max(r.ttft_s for r in late) < 1.0


def test_advice_changes_nothing():
    requests = steady(75, 60)
    _, outcome, driver = run(requests, params(mode=Mode.ADVISORY))
    assert scaled(driver)  # it says what it would do
    assert outcome.replicas["main"][0] == 1


def test_the_log_of_a_simulation_replays_to_the_same_decisions():
    lines: list[str] = []
    requests = steady(15, 30) + steady(75, 30, start_s=30)
    run(requests, params(), write=lambda record: lines.append(dump(record)))
    result = replay(lines)
    assert result.identical
    assert result.decisions > 0
    assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_decides_the_same(seed):
    def once():
        driver = Steered(params(), contexts={"main": 500}, output_cap=8)
        made = setup(pool(1, max_requests=8, max_tokens=IN_FLIGHT))
        Simulation(made, driver=driver, seed=seed).run(steady(40, 60))
        return driver.decisions

    assert once() == once()


class Recorded:
    """Serve's side of a live controller: states are given, requests are noted."""

    def __init__(self) -> None:
        self.state: dict[str, DeploymentState] = {}
        self.asked: list[tuple[str, int]] = []

    async def states(self):
        return self.state

    async def scale(self, deployment, replicas):
        self.asked.append((deployment, replicas))


loads = st.lists(
    st.tuples(
        st.floats(0, 8 * RATE),  # arrivals
        st.floats(0, 8 * IN_FLIGHT),  # in flight
        st.floats(0, 8 * IN_FLIGHT),  # queued
        st.integers(0, 6),  # ready
        st.floats(0, 30),  # oldest wait
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(seen=loads)
def test_both_drivers_decide_the_same_on_the_same_snapshots(seen, tmp_path_factory):
    """The live controller actor and the simulator's driver, fed the same observations."""
    path = tmp_path_factory.mktemp("log") / "decisions.jsonl"
    p = params()
    live = _live_decisions(seen, p, path)
    driver = Steered(p, contexts={"main": 500}, output_cap=8)
    simulated = []
    for index, (rate, flight, queued, ready, wait) in enumerate(seen):
        traffic = Traffic(
            arrival_tokens_per_s=rate,
            in_flight_tokens=flight,
            queued_tokens=queued,
            queued_requests=int(queued > 0),
            oldest_wait_s=wait,
            **work_of(rate, flight, queued),
        )
        reports = [SimReport(f"main/{n}", float(index), 1, 0, 0.5) for n in range(ready)]
        facts = PoolFacts(
            name="main", target=6, ready=ready, pending=6 - ready, reports=reports, traffic=traffic
        )
        before = len(driver.decisions)
        asked = driver.tick([facts], float(index))
        simulated.append(([d for _, d in driver.decisions[before:]], dict(asked.sizes)))
    assert [decisions for decisions, _ in simulated] == [decisions for decisions, _ in live]
    assert [asked.get("main") for _, asked in simulated] == [asked for _, asked in live]


def work_of(rate, flight, queued):
    return {
        "arrival_work": rate / RATE,
        "in_flight_work": flight / RATE,
        "queued_work": queued / RATE,
    }


def _live_decisions(seen, p, path):
    """What the actor decides, tick by tick, its clock and Serve's side replaced."""

    class Clock:
        now_s = 0.0

        def time(self):
            return self.now_s

    clock = Clock()

    async def scenario():
        import serving.control.controller_actor as module

        kept = module.time
        module.time = clock
        try:
            actor = ControllerActor(
                ControllerSpec(
                    params=p,
                    deployments={"main": "llm"},
                    dashboard_url="http://127.0.0.1:1",
                    app="app",
                    token=None,
                    log_path=str(path),
                ),
                node=lambda: "here",
            )
            actor._ticking.cancel()
            serve = Recorded()
            actor._scaler = serve
            found = []
            for index, (rate, flight, queued, ready, wait) in enumerate(seen):
                clock.now_s = float(index)
                names = frozenset(f"main/{n}" for n in range(ready))
                serve.state = {
                    "llm": DeploymentState(
                        name="llm",
                        status="",
                        target=6,
                        running=ready,
                        starting=6 - ready,
                        message="",
                        answering=names,
                    )
                }
                actor._heard.replicas.clear()
                for name in sorted(names):
                    await actor.observe_replica(
                        ReplicaReport(
                            pool="main",
                            replica_id=name,
                            sent_s=0.0,
                            started_s=0.0,
                            pid=1,
                            address="127.0.0.1:1",
                            running=1,
                            waiting=0,
                            kv_usage=0.5,
                        )
                    )
                load = PoolLoad(
                    pool="main",
                    arrival_tokens_per_s=rate,
                    in_flight_tokens=flight,
                    queued_tokens=queued,
                    queued_requests=int(queued > 0),
                    oldest_wait_s=wait,
                    **work_of(rate, flight, queued),
                )
                await actor.exchange(
                    GatewayReport(
                        gateway_id="g",
                        address="h:1",
                        sent_s=0.0,
                        loads=(load,),
                        in_flight={},
                        charged={},
                    )
                )
                asked = len(serve.asked)
                actor._recent = []
                await actor._tick()
                found.append(
                    (
                        [decision for _, decision in actor._recent],
                        serve.asked[-1][1] if len(serve.asked) > asked else None,
                    )
                )
            return found
        finally:
            module.time = kept

    return asyncio.run(scenario())


def test_live_reports_and_simulated_ones_make_the_same_snapshot():
    traffic = Traffic(
        arrival_tokens_per_s=10.0,
        in_flight_tokens=20.0,
        queued_tokens=5.0,
        queued_requests=1,
        oldest_wait_s=0.5,
        arrival_work=0.01,
        in_flight_work=0.02,
        queued_work=0.005,
    )
    facts = PoolFacts(
        name="main",
        target=2,
        ready=1,
        pending=1,
        reports=[SimReport("main/0", 7.0, 3, 1, 0.25, 900, 80)],
        traffic=traffic,
    )
    heard = Heard(
        replicas={
            "main/0": ReplicaReport(
                pool="main",
                replica_id="main/0",
                sent_s=7.0,
                started_s=0.0,
                pid=1,
                address="127.0.0.1:1",
                running=3,
                waiting=1,
                kv_usage=0.25,
                prompt_tokens=900,
                output_tokens=80,
            )
        },
        gateways={
            "g": GatewayReport(
                gateway_id="g",
                address="h:1",
                sent_s=7.0,
                loads=(PoolLoad(pool="main", **asdict(traffic)),),
                in_flight={},
                charged={},
            )
        },
        deployments={
            "main": DeploymentState(
                name="llm",
                status="",
                target=2,
                running=1,
                starting=1,
                message="",
                answering=frozenset({"main/0"}),
            )
        },
        deployments_s=7.0,
    )
    assert snapshot_of([facts], 7.0) == snapshot(heard, pools=["main"], now_s=7.0)


def test_a_recorded_run_can_be_stepped_by_hand():
    records = []
    run(steady(40, 30), params(), write=records.append)
    assert isinstance(records[0], Header)
    state = ControllerState()
    for tick in records[1:]:
        assert isinstance(tick, Tick)
        result = step(state, tick.snapshot, records[0].params)
        assert result.decisions == tick.decisions
        state = result.state


def test_a_request_longer_than_the_light_context_stays_with_the_planned_model():
    p = params(maximum=1, light=True)
    driver = Steered(p, contexts={"main": 5000, "light": 30}, output_cap=8)
    driver._light_ready = 1
    driver._last = replace(step(ControllerState(), snapshot_of([], 0.0), p), tier=Tier.LIGHT_MODEL)
    assert driver.admit(request(prompt=10)).pool == "light"
    assert driver.admit(request(prompt=100)).pool == "main"
