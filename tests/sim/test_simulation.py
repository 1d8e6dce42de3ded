from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import ConfigError
from cluster.priority import Priority
from cluster.sim.driver import Admission, Orders, Unsteered
from cluster.sim.event_log import Lines
from cluster.sim.failures import Failure, Fault
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from cluster.sim.spec import Role
from tests.sim.build import AT_ONCE, check_books, pool, request, setup, workloads

failures = st.builds(
    Failure,
    kind=st.sampled_from(Fault),
    at_s=st.floats(0, 4),
    pool=st.just("main"),
    number=st.integers(0, 3),
    for_s=st.floats(0.1, 20),
    factor=st.floats(1, 5),
)
rules = st.builds(
    GatewayRules,
    batch_wait_s=st.sampled_from([0.0, 0.05]),
    batch_tokens=st.sampled_from([50.0, 4096.0]),
    reschedule_after_s=st.sampled_from([0.05, 0.5]),
    resumes=st.booleans(),
    attempts=st.integers(1, 3),
    max_queued=st.integers(1, 20),
    queue_wait_s=st.sampled_from([0.5, 30.0]),
)


class Checked(Unsteered):
    """Looks at the books of every replica at every tick, and changes the number of replicas."""

    def __init__(self, simulation: list[Simulation], targets=()):
        super().__init__("main", tick_s=0.25)
        self.simulation = simulation
        self.targets = list(targets)
        self.ticks = 0

    def tick(self, facts, now_s):
        self.ticks += 1
        fleets = self.simulation[0]._fleets.values() if self.simulation else ()
        for fleet in fleets:
            for replica in fleet.replicas.values():
                for engine in replica.engines:
                    for rank in engine.ranks:
                        check_books(rank, replica.spec)
        due = self.targets and self.ticks % 4 == 0
        return Orders({"main": self.targets.pop(0)} if due else {})


def run(made, workload, *, seed=0, targets=(), log=None, keep=True):
    held: list[Simulation] = []
    more = {} if log is None else {"log": log}
    simulation = Simulation(made, driver=Checked(held, targets), seed=seed, keep=keep, **more)
    held.append(simulation)
    return simulation, simulation.run(workload)


@settings(max_examples=120, deadline=None)
@given(
    workload=workloads(),
    broken=st.lists(failures, max_size=4),
    gateway=rules,
    targets=st.lists(st.integers(0, 4), max_size=4),
    speculates=st.booleans(),
    ranks=st.integers(1, 2),
)
def test_requests_tokens_and_blocks_are_conserved(
    workload, broken, gateway, targets, speculates, ranks
):
    from cluster.costmodel.speculation import Speculation

    made = setup(
        pool(
            2,
            max_requests=6,
            kv_blocks=40,
            start_s=1.0,
            ranks=ranks,
            lockstep=True,
            speculation=Speculation(drafts=2, acceptance=0.5) if speculates else None,
        ),
        rules=gateway,
        failures=tuple(broken),
    )
    simulation, outcome = run(made, workload, targets=targets)
    record = outcome.record
    assert record.arrived == len(workload)
    assert record.arrived == record.completed + sum(record.refused.values()) + outcome.unfinished
    assert outcome.unfinished == 0  # a request that no replica can take gives up in time
    done = {finished.number for finished in record.requests}
    assert len(done) == len(record.requests) == record.completed
    assert record.output_tokens == sum(workload[number].output_tokens for number in done)
    assert record.prompt_tokens == sum(workload[number].prompt_tokens for number in done)
    for finished in record.requests:
        assert finished.ttft_s > 0.0
        assert finished.e2e_s >= finished.ttft_s
        assert finished.cached_tokens < max(finished.prompt_tokens, 1)
    for front in simulation._fronts.values():
        assert front.waiting == 0
        assert front.ledger.in_flight() == {}
    for fleet in simulation._fleets.values():
        for replica in fleet.replicas.values():
            assert replica.load == 0
            assert all(rank.kv.used == 0 for engine in replica.engines for rank in engine.ranks)


@settings(max_examples=30, deadline=None)
@given(workload=workloads(), broken=st.lists(failures, max_size=3), seed=st.integers(0, 5))
def test_the_same_seed_gives_the_same_log(workload, broken, seed):
    made = setup(pool(3, max_requests=4), failures=tuple(broken))
    logs = []
    for _ in range(2):
        log = Lines()
        run(made, workload, seed=seed, log=log)
        logs.append(log.lines)
    assert logs[0] == logs[1]
    assert logs[0]


def test_a_closed_loop_keeps_so_many_in_flight():
    simulation = Simulation(setup(rules=AT_ONCE), keep=True)
    outcome = simulation.run_closed([request(output=20)] * 40, concurrency=4)
    record = outcome.record
    assert record.completed == 40
    in_flight = record.e2e.mean * record.completed / outcome.duration_s  # Little's law
    assert in_flight == pytest.approx(4.0, rel=0.05)


def test_a_crash_mid_stream_breaks_what_has_begun_and_retries_what_has_not():
    workload = [request(0.0, output=200), request(0.05, output=200)]
    workload += [request(0.99, prompt=2000, output=5)]
    made = setup(
        pool(1, kv_blocks=400, start_s=2.0),
        rules=AT_ONCE,
        failures=(Failure(kind=Fault.CRASH, at_s=1.0, pool="main", number=0),),
    )
    log = Lines()
    _, outcome = run(made, workload, log=log)
    assert outcome.record.refused == {"broken mid-stream by a lost replica": 2}
    assert outcome.record.events["retried elsewhere"] == 1
    (late,) = outcome.record.requests
    assert late.replica_id == "main/1"
    assert late.ttft_s > 2.0  # it waited for the replacement to start
    assert any("main/0 crash" in line for line in log.lines)
    assert any("main/1 ready" in line for line in log.lines)


def test_streams_are_resumed_where_the_gateway_can():
    workload = [request(0.0, output=200), request(0.05, output=200)]
    made = setup(
        pool(2),
        rules=replace(AT_ONCE, resumes=True),
        failures=(Failure(kind=Fault.CRASH, at_s=1.0, pool="main", number=0),),
    )
    _, outcome = run(made, workload)
    assert outcome.record.completed == 2
    assert outcome.record.events["resumed mid-stream"] == 1
    assert outcome.record.output_tokens == 400  # none lost, none twice


def test_a_frozen_replica_is_left_alone_and_replaced():
    workload = [request(0.1 * index, output=10) for index in range(300)]
    made = setup(
        pool(2, start_s=3.0),
        failures=(Failure(kind=Fault.FREEZE, at_s=5.0, pool="main", number=0),),
    )
    log = Lines()
    _, outcome = run(made, workload, log=log)
    moments = {line.split(" ", 1)[1]: float(line.split(" ", 1)[0]) for line in log.lines}
    assert moments["main/0 freeze"] == 5.0
    assert moments["main/0 lost"] == 15.0  # Serve's health check: 10 s
    assert moments["main/2 ready"] == 18.0
    to_it = [float(line.split()[0]) for line in log.lines if line.endswith(" to main/0")]
    assert max(to_it) <= 5.0 + 6.0 + 1.0  # its report is forgotten after 6 s
    assert outcome.record.completed + sum(outcome.record.refused.values()) == 300


def test_a_short_freeze_is_a_pause():
    workload = [request(0.0, output=100)]
    made = setup(failures=(Failure(kind=Fault.FREEZE, at_s=0.5, pool="main", number=0, for_s=2.0),))
    _, broken = run(made, workload)
    _, whole = run(setup(), workload)
    later = broken.record.e2e.mean - whole.record.e2e.mean
    assert later == pytest.approx(2.0, abs=0.02)


def test_a_replica_that_hangs_goes_on_reporting_and_nobody_else_ends_it():
    workload = [request(4.9 + 0.01 * index, output=200) for index in range(4)]
    hang = Failure(kind=Fault.HANG, at_s=5.0, pool="main", number=0, for_s=20.0)
    log = Lines()
    _, outcome = run(setup(pool(2), failures=(hang,)), workload, log=log)
    assert not any(line.endswith("main/0 lost") for line in log.lines)
    assert outcome.record.completed == 4
    slowest = max(done.e2e_s for done in outcome.record.requests)
    assert slowest > 15.0, "what it had has waited until it went on"


def test_a_slow_replica_gets_less():
    workload = [request(0.01 * index, output=20) for index in range(400)]
    made = setup(
        pool(2, max_requests=8),
        failures=(Failure(kind=Fault.SLOW, at_s=0.0, pool="main", number=0, factor=4.0),),
    )
    _, outcome = run(made, workload)
    served = [done.replica_id for done in outcome.record.requests]
    assert served.count("main/0") < 0.6 * served.count("main/1")


def test_second_scheduling_takes_back_what_has_not_started():
    # One replica of a sudden is slow: what waits in its engine goes to the other one.
    workload = [request(0.001 * index, prompt=60, output=60) for index in range(12)]
    made = setup(
        pool(2, max_num_seqs=2),
        rules=replace(AT_ONCE, reschedule_after_s=0.5),
        failures=(Failure(kind=Fault.SLOW, at_s=0.02, pool="main", number=0, factor=50.0),),
    )
    _, moved = run(made, workload)
    never = replace(made, gateway=replace(made.gateway, reschedule_after_s=float("inf")))
    _, stayed = run(never, workload)
    assert moved.record.events["moved before they started"] > 0
    assert stayed.record.events["moved before they started"] == 0
    assert moved.duration_s < stayed.duration_s


def test_nothing_is_held_while_a_replica_is_idle():
    held = GatewayRules(batch_wait_s=0.05)
    first = {}
    for name, gateway in (("held", held), ("at once", AT_ONCE)):
        simulation, _ = run(setup(pool(2), rules=gateway), [request(), request(0.001)])
        first[name] = [done.ttft_s for done in simulation.record.requests]
    assert first["held"] == first["at once"]


def test_a_busy_pool_forms_batches_of_at_most_fifty_milliseconds():
    workload = [request(0.0, output=300), request(0.1), request(0.12), request(0.3)]
    simulation, _ = run(setup(pool(1), rules=GatewayRules(batch_wait_s=0.05)), workload)
    at_once, _ = run(setup(pool(1), rules=AT_ONCE), workload)
    done, plain = ({r.number: r.ttft_s for r in s.record.requests} for s in (simulation, at_once))
    step_s = 0.0115
    assert done[1] - plain[1] == pytest.approx(0.05, abs=step_s)
    assert done[2] - plain[2] == pytest.approx(0.03, abs=step_s)
    assert done[3] - plain[3] == pytest.approx(0.05, abs=step_s)


def test_a_big_batch_goes_before_its_time():
    workload = [request(0.0, output=300)] + [request(0.1 + 0.001 * i, prompt=60) for i in range(5)]
    rules_ = GatewayRules(batch_wait_s=10.0, batch_tokens=300.0, expected_output=16)
    simulation, _ = run(setup(pool(1), rules=rules_), workload)
    assert max(done.ttft_s for done in simulation.record.requests if done.number <= 4) < 1.0


def test_what_can_never_fit_is_refused_and_the_rest_served():
    _, outcome = run(setup(pool(1, kv_blocks=8)), [request(prompt=500), request(0.01)])
    assert outcome.record.refused == {"longer than the KV cache": 1}
    assert outcome.record.completed == 1


def test_a_full_line_refuses_and_a_long_wait_gives_up():
    gateway = replace(AT_ONCE, max_queued=2, queue_wait_s=0.3)
    workload = [request(0.001 * index, output=500) for index in range(6)]
    _, outcome = run(setup(pool(1, max_requests=1), rules=gateway), workload)
    assert outcome.record.refused == {"the line is full": 3, "waited too long": 2}


def test_without_a_replica_requests_wait_for_one():
    _, outcome = run(setup(pool(0, start_s=2.0)), [request()], targets=[1])
    assert outcome.record.completed == 1
    assert outcome.record.ttft.mean > 2.0


def test_vip_requests_pass_the_others_in_line():
    workload = [request(0.001 * index, output=50) for index in range(8)]
    workload += [request(0.02, output=5, priority=Priority.VIP)]
    simulation, _ = run(setup(pool(1, max_requests=1), rules=AT_ONCE), workload)
    ends = sorted(simulation.record.requests, key=lambda done: done.arrival_s + done.e2e_s)
    assert [done.number for done in ends].index(8) == 1


def test_replicas_drain_before_they_go():
    workload = [request(0.1, output=400)] * 4
    simulation, outcome = run(setup(pool(2), rules=AT_ONCE), workload, targets=[1])
    assert outcome.record.completed == 4
    assert {done.replica_id for done in simulation.record.requests} == {"main/0", "main/1"}
    assert outcome.replicas["main"][0] == 2
    assert outcome.replicas["main"][1] < 2.0


def test_prefill_and_decode_pools_hand_over_the_cache():
    pools = (
        pool(1, name="prefill", role=Role.PREFILL, kv_bytes_per_token=1e6),
        pool(2, name="decode", role=Role.DECODE, kv_bytes_per_token=1e6),
    )
    pools = tuple(
        replace(p, spec=replace(p.spec, transfer_bytes_per_s=1e9, transfer_s=0.01)) for p in pools
    )
    workload = [request(0.2 * index, prompt=50, output=20) for index in range(6)]
    simulation = Simulation(setup(*pools, rules=AT_ONCE), keep=True)
    outcome = simulation.run(workload)
    assert outcome.record.completed == 6
    assert outcome.record.events["KV caches sent"] == 6
    assert {done.replica_id for done in simulation.record.requests} == {"decode/0", "decode/1"}
    prefill_s = 0.01 + 50e-5
    for done in simulation.record.requests:
        assert done.ttft_s == pytest.approx(prefill_s + 0.01 + 51e6 / 1e9)
    assert outcome.record.itl.most < 0.02  # no prompt ever delays a token


def test_cost_is_that_of_the_devices_from_when_they_were_asked_for():
    _, outcome = run(setup(pool(3, devices=4)), [request(0.0), request(100.0)])
    assert outcome.device_hours == pytest.approx(3 * 4 * outcome.duration_s / 3600)
    assert outcome.cost == pytest.approx(2.0 * outcome.device_hours)


def test_goodput_counts_only_what_is_within_the_bounds():
    from cluster.model.workload import Slo

    workload = [request(0.0, output=2)] * 20
    simulation, outcome = run(
        setup(pool(1, max_num_seqs=1), rules=AT_ONCE, slo=Slo(ttft_s=0.1, tpot_s=1.0)), workload
    )
    within = [done for done in simulation.record.requests if done.ttft_s <= 0.1]
    assert 0 < len(within) < 20
    assert outcome.attainment == pytest.approx(len(within) / 20)
    assert outcome.goodput_rps == pytest.approx(len(within) / outcome.duration_s)


def test_memory_does_not_grow_with_the_requests():
    simulation = Simulation(setup(rules=AT_ONCE))
    simulation.run(request(0.5 * index, output=3) for index in range(5000))
    assert len(simulation.record.series.windows) <= 600
    assert simulation.record.requests is None
    assert len(simulation._heap) < 50


def test_a_pool_with_only_half_of_the_roles_is_refused():
    with pytest.raises(ConfigError, match="prefill and decode"):
        setup(pool(name="prefill", role=Role.PREFILL))


def test_a_failure_of_an_unknown_pool_is_refused():
    with pytest.raises(ConfigError, match="there are main, and node"):
        setup(failures=(Failure(kind=Fault.CRASH, at_s=1.0, pool="other", number=0),))


def test_a_refused_request_is_counted_as_missed():
    class Refusing(Unsteered):
        def admit(self, asked):
            return Admission("main", asked.output_tokens, refused="no")

    outcome = Simulation(setup(), driver=Refusing("main")).run([request()])
    assert (outcome.attainment, outcome.record.refused) == (0.0, {"no": 1})


def test_a_request_longer_than_the_context_is_refused():
    made = setup(replace(pool(), max_context=100))
    _, outcome = run(made, [request(prompt=90, output=20), request(0.1, prompt=90, output=10)])
    assert outcome.record.refused == {"longer than the model's context": 1}
    assert outcome.record.completed == 1


def test_a_failure_that_hits_nobody_is_said():
    made = setup(failures=(Failure(kind=Fault.CRASH, at_s=0.1, pool="main", number=7),))
    _, outcome = run(made, [request(0.0, output=30)])
    assert outcome.record.events["failures that hit nobody: crash"] == 1


def test_a_request_may_come_back_to_a_replica_it_was_taken_from():
    # Two replicas slow down in turn, so that what waits goes there and back before a crash.
    workload = [request(0.001 * index, prompt=60, output=60) for index in range(12)]
    made = setup(
        pool(2, max_num_seqs=2),
        rules=replace(AT_ONCE, reschedule_after_s=0.2, max_moves=5),
        failures=(
            Failure(kind=Fault.SLOW, at_s=0.02, pool="main", number=0, factor=50.0, for_s=0.3),
            Failure(kind=Fault.SLOW, at_s=0.35, pool="main", number=1, factor=80.0, for_s=5.0),
            Failure(kind=Fault.CRASH, at_s=3.0, pool="main", number=0),
        ),
    )
    _, outcome = run(made, workload)
    record = outcome.record
    assert record.completed + sum(record.refused.values()) == 12
