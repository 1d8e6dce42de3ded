import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.sim.engine import Engine
from cluster.sim.job import NEVER, Job
from cluster.sim.simulation import Simulation
from tests.sim import naive
from tests.sim.build import AT_ONCE, PlainTimes, check_books, pool, request, setup, spec, workloads


def finished(simulation: Simulation):
    return sorted(simulation.record.requests, key=lambda done: done.number)


@settings(max_examples=150, deadline=None)
@given(
    workload=workloads(),
    seqs=st.integers(1, 12),
    chunk=st.integers(16, 150),
    blocks=st.integers(20, 60),
)
def test_skipping_ahead_gives_what_every_single_step_gives(workload, seqs, chunk, blocks):
    limits = {"max_num_seqs": seqs, "chunk": chunk, "kv_blocks": blocks}
    expected, preemptions = naive.run(workload, times=PlainTimes(), **limits)
    simulation = Simulation(setup(pool(prefix_caching=False, **limits), rules=AT_ONCE), keep=True)
    outcome = simulation.run(workload)
    assert outcome.record.events["preemptions"] == preemptions
    for want, got in zip(expected, finished(simulation), strict=True):
        # A run's steps are spaced evenly, which they are but for rounding under these times.
        assert got.ttft_s == pytest.approx(want.first_s - want.arrival_s, abs=1e-6)
        assert got.e2e_s == pytest.approx(want.last_s - want.arrival_s, abs=1e-6)


def test_a_lone_request_takes_its_prompt_and_then_a_step_per_token():
    simulation = Simulation(setup(rules=AT_ONCE), keep=True)
    simulation.run([request(prompt=20, output=5)])
    (done,) = finished(simulation)
    times = PlainTimes()
    prefill = times.step_s + 20 * times.prompt_s
    steps = [times.decode_s(1, 21 + i, 1) for i in range(4)]
    assert done.ttft_s == pytest.approx(prefill)
    assert done.e2e_s == pytest.approx(prefill + sum(steps))


def test_a_long_prompt_comes_in_chunks_beside_those_that_decode():
    simulation = Simulation(setup(rules=AT_ONCE), keep=True)
    outcome = simulation.run([request(prompt=10, output=40), request(0.1, prompt=200, output=2)])
    first, second = finished(simulation)
    assert second.ttft_s > 4 * PlainTimes().step_s  # 200 tokens at 63 beside one that decodes
    assert outcome.record.itl.count == 39 + 1
    assert first.output_tokens == 40


def test_engines_that_do_not_mix_stop_decoding_for_a_prompt():
    apart = Simulation(setup(pool(mixes=False), rules=AT_ONCE), keep=True)
    together = Simulation(setup(pool(mixes=True), rules=AT_ONCE), keep=True)
    workload = [request(prompt=10, output=40), request(0.1, prompt=60, output=2)]
    worst = [s.run(workload).record.itl.most for s in (apart, together)]
    assert worst[0] > worst[1]


def test_join_steps_keep_a_new_request_waiting():
    workload = [request(prompt=10, output=100), request(0.1, prompt=10, output=2)]
    ttft = []
    for steps in (0, 3):
        simulation = Simulation(setup(pool(join_steps=steps), rules=AT_ONCE), keep=True)
        simulation.run(workload)
        ttft.append(finished(simulation)[1].ttft_s)
    assert ttft[1] - ttft[0] == pytest.approx(3 * PlainTimes().step_s, rel=0.05)


def test_a_cached_prefix_needs_no_prefill_and_is_shared():
    blocks = tuple(range(5))
    workload = [
        request(0.0, prompt=85, output=50, blocks=blocks, size=16),
        request(0.3, prompt=85, output=2, blocks=blocks, size=16),
    ]
    simulation = Simulation(setup(rules=AT_ONCE), keep=True)
    simulation.run(workload)
    first, second = finished(simulation)
    assert (first.cached_tokens, second.cached_tokens) == (0, 80)
    assert second.ttft_s < first.ttft_s


def test_a_whole_cached_prompt_computes_its_last_block_again():
    blocks = tuple(range(4))
    workload = [request(at, prompt=64, output=3, blocks=blocks, size=16) for at in (0.0, 1.0)]
    simulation = Simulation(setup(rules=AT_ONCE), keep=True)
    simulation.run(workload)
    assert finished(simulation)[1].cached_tokens == 48


def test_classes_count_in_the_engine_where_it_is_told_so():
    from cluster.priority import Priority

    workload = [request(0.0, prompt=30, output=30, priority=Priority.BATCH)]
    workload += [request(0.001, prompt=30, output=5, priority=Priority.BATCH) for _ in range(3)]
    workload += [request(0.002, prompt=30, output=5, priority=Priority.VIP)]
    limits = {"max_num_seqs": 1}
    order = {}
    for by_priority in (False, True):
        simulation = Simulation(
            setup(pool(by_priority=by_priority, **limits), rules=AT_ONCE), keep=True
        )
        simulation.run(workload)
        ends = sorted(finished(simulation), key=lambda done: done.arrival_s + done.e2e_s)
        order[by_priority] = [done.number for done in ends].index(4)
    assert order == {False: 4, True: 1}


def test_speculation_finishes_sooner_and_counts_every_token():
    from cluster.costmodel.speculation import Speculation

    drafts = Speculation(drafts=3, acceptance=0.7)
    outcomes = []
    for speculation in (None, drafts):
        simulation = Simulation(setup(pool(speculation=speculation), rules=AT_ONCE), keep=True)
        outcomes.append(simulation.run([request(prompt=30, output=101)]))
    plain, fast = (outcome.record for outcome in outcomes)
    assert fast.output_tokens == plain.output_tokens == 101
    ratio = plain.tpot.mean / fast.tpot.mean
    assert ratio == pytest.approx(drafts.accepted, rel=0.02)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_pipeline_carries_more_than_one_batch(stages):
    workload = [request(0.0, prompt=8, output=60) for _ in range(8)]
    rates = []
    for pp in (1, stages):
        simulation = Simulation(setup(pool(stages=pp, max_num_seqs=8), rules=AT_ONCE), keep=True)
        rates.append(simulation.run(workload).record.tpot.mean)
    # A round of the pipeline takes one pass, with a share of the sequences in each micro-batch.
    assert rates[1] < rates[0]


def test_ranks_in_lockstep_wait_for_the_slowest():
    alone = Simulation(setup(pool(), rules=AT_ONCE), keep=True)
    alone.run([request(prompt=10, output=30)])
    paired = Simulation(setup(pool(ranks=2, lockstep=True), rules=AT_ONCE), keep=True)
    paired.run([request(prompt=10, output=30), request(0.001, prompt=60, output=30)])
    apart = Simulation(setup(pool(ranks=2, lockstep=False), rules=AT_ONCE), keep=True)
    apart.run([request(prompt=10, output=30), request(0.001, prompt=60, output=30)])
    times = [finished(s)[0].e2e_s for s in (alone, apart, paired)]
    assert times[0] == pytest.approx(times[1])
    assert times[2] > times[1]


actions = st.lists(
    st.tuples(
        st.sampled_from(["submit", "wake", "remove", "slow", "freeze", "thaw"]),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    steps=actions,
    ranks=st.integers(1, 3),
    mixes=st.booleans(),
    speculates=st.booleans(),
    blocks=st.integers(16, 40),
)
def test_books_are_kept_through_anything(steps, ranks, mixes, speculates, blocks):
    from cluster.costmodel.speculation import Speculation

    size = spec(
        mixes=mixes,
        kv_blocks=blocks,
        max_num_seqs=5,
        speculation=Speculation(drafts=2, acceptance=0.6) if speculates else None,
    )
    engine = Engine(size, ranks=ranks, gaps=lambda seconds, count: None)
    now, inside, done, number, made = 0.0, [], [], 0, 0
    for action, value in steps:
        now += 0.0001 * (value % 700)
        while engine.wake_s <= now:
            at_s = engine.wake_s
            engine.wake(at_s)
            assert engine.wake_s > at_s
        if action == "submit":
            job = Job(
                number=number,
                arrival_s=now,
                prompt=1 + value % 90,
                limit=1 + value // 7 % 60,
                blocks=tuple(range(value % 2 * (1 + value % 90) // 16)),
                block_tokens=16,
            )
            number += 1
            if size.holds(job.prompt, job.limit):
                inside.append(job)
                engine.submit(job, now)
        elif action == "remove" and inside:
            job = inside[value % len(inside)]
            if job.rank is not None:
                engine.remove(job, now)
                inside.remove(job)
        elif action == "slow" and not engine.frozen:
            engine.slow_down(1.0 + value % 3, now)
        elif action == "freeze" and not engine.frozen:
            engine.freeze(now)
        elif action == "thaw" and engine.frozen:
            engine.thaw(now)
        inside = [job for job in inside if job not in engine.done]
        done += engine.done
        engine.done = []
        for rank in engine.ranks:
            check_books(rank, size)
        assert engine.steps_by(now) >= made, "a step that has ended is never taken back"
        made = engine.steps_by(now)
        assert 0.0 <= engine.silent_s(now) <= now
        assert engine.load == len([job for job in inside if job.rank is not None])
        assert all(job.rank is not None for job in inside)
    if engine.frozen:
        engine.thaw(now)
    for _ in range(20000):
        if engine.wake_s == NEVER:
            break
        engine.wake(engine.wake_s)
    done += engine.done
    assert {job.number for job in inside} <= {job.number for job in done}
    for job in done:
        assert job.generated == job.limit
    for rank in engine.ranks:
        assert rank.kv.used == 0
        assert rank.load == 0
