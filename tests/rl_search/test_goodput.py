"""The simulator judges what fits, by the requests that keep the bounds, and nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from cluster.costmodel.calibration_file import default_coefficients
from cluster.errors import ConfigError, InputError
from cluster.model.catalogue import get_model
from cluster.model.cluster_file import parse_cluster
from cluster.model.layout import Layout, LayoutTable
from cluster.model.workload import Slo, Workload
from cluster.sim.from_plan import pool_setups
from cluster.sim.setup import GatewayRules
from cluster.sim.task import Result, SimTask, Summary, TaskFailed, attempt_task, run_task
from cluster.traces.arrivals import poisson
from cluster.traces.lengths import Exponential, Independent, Lognormal
from cluster.traces.request import TraceRequest
from cluster.traces.scaling import scale_rate
from cluster.traces.synthetic import SyntheticTrace
from rl_search import goodput as module
from rl_search.archive import Archive
from rl_search.enumeration import Space, SpaceOptions
from rl_search.evaluator import MOST, CostModel, Ints
from rl_search.goodput import Goodput, TraceFacts, goodput
from rl_search.planner import make_plan
from rl_search.question import Priority, Question
from rl_search.request import PlanRequest
from rl_search.space import ActionSpace

CLUSTER = parse_cluster("1x8xH100")
WORKLOAD = Workload(isl=1000, osl=100)
SLO = Slo(ttft_s=1.0, tpot_s=0.04)
TRACE = tuple(
    SyntheticTrace(
        arrivals=poisson(rate=1.0),
        lengths=Independent(Lognormal(1000, 0.5), Exponential(100)),
        count=150,
    )
)
FACTS = TraceFacts.of(TRACE)
GOOD = Layout(tp=4, replicas=2, max_num_seqs=48, max_num_batched_tokens=2048)
SMALL = replace(GOOD, max_num_seqs=2)


def question(**changes: object) -> Question:
    base = Question(
        model=get_model("llama-3.1-70b"),
        group=CLUSTER.groups[0],
        workload=WORKLOAD,
        slo=SLO,
        options=SpaceOptions(batches=(2, 16, 48, 256), chunks=(128, 512, 2048)),
        headroom=0.2,
        max_model_len=8192,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def simulate(tasks: Sequence[SimTask]) -> list[Result]:
    return [attempt_task(task, TRACE) for task in tasks]


def never(tasks: Sequence[SimTask]) -> list[Result]:
    raise AssertionError(tasks)


@pytest.fixture(scope="module")
def space() -> ActionSpace:
    return ActionSpace.of(question())


def actions(space: ActionSpace, *layouts: Layout) -> Ints:
    return space.encode(LayoutTable.from_layouts(layouts))


class Recorded:
    """Simulates here, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[list[SimTask]] = []

    def __call__(self, tasks: Sequence[SimTask]) -> list[Result]:
        self.calls.append(list(tasks))
        return simulate(tasks)


def test_the_value_is_what_the_best_load_delivers_to_a_device(space: ActionSpace) -> None:
    run = Recorded()
    evaluator = Goodput(space, run=run, trace=FACTS, loads=(0.5, 0.8))
    found = evaluator.judge(actions(space, GOOD))
    capacity = CostModel(space, Priority.THROUGHPUT).judge(actions(space, GOOD)).value[0]
    rates = []
    for task, load in zip(run.calls[0], (0.5, 0.8), strict=True):
        assert task.speed_up == pytest.approx(load * capacity * 4 / 100 / FACTS.rate)
        summary = run_task(replace(task, speed_up=1.0), scale_rate(TRACE, task.speed_up))
        decoding_s = summary.tpot_s.mean * summary.output_tokens / summary.completed
        begun_s = TRACE[0].arrival_s / task.speed_up
        rates.append(summary.attained / (summary.duration_s - decoding_s - begun_s))
        assert rates[-1] >= summary.goodput_rps > 0.0
    assert found.value[0] == pytest.approx(max(rates) / 4 * FACTS.output_tokens)
    assert found.ok.all()
    assert (evaluator.simulations, evaluator.failures) == (2, [])
    assert found.value[0] < capacity * 1.1


def test_the_replica_is_the_one_that_a_plan_of_it_would_have() -> None:
    model = get_model("qwen3-30b-a3b")
    request = PlanRequest(model=model, cluster=CLUSTER, workload=WORKLOAD, slo=SLO)
    plan = make_plan(request).plan
    theirs = pool_setups(plan, models=lambda _: model, group=CLUSTER.groups[0], cold_start_s=0.0)[0]
    space = ActionSpace.of(
        question(model=model, options=SpaceOptions(), max_model_len=theirs.max_context)
    )
    run = Recorded()
    evaluator = Goodput(space, run=run, trace=FACTS, loads=(0.5,))
    assert evaluator.judge(actions(space, plan.main.layout.to_layout(replicas=1))).ok.all()
    setup = run.calls[0][0].setup
    ours = setup.pools[0]
    assert replace(ours.spec, times=theirs.spec.times) == theirs.spec
    assert (ours.limits, ours.max_context) == (theirs.limits, theirs.max_context)
    assert setup.gateway == GatewayRules(expected_output=100, length_predictor="formula")
    assert setup.slo == SLO
    assert ours.spec.times.decode_s(8, 8000.0, 20) == theirs.spec.times.decode_s(8, 8000.0, 20)


def test_what_breaks_a_rule_is_told_by_the_cost_model_and_never_simulated(
    space: ActionSpace,
) -> None:
    rng = np.random.default_rng(0)
    tried = rng.integers(0, np.asarray(space.sizes), (200, len(space.heads)))
    tried = tried[~space.contains(tried)]
    assert len(tried) > 20
    evaluator = Goodput(space, run=never, trace=FACTS)
    found = evaluator.judge(tried)
    theirs = CostModel(space, Priority.THROUGHPUT).judge(tried)
    assert np.array_equal(found.shortfall, theirs.shortfall)
    assert np.array_equal(found.bubble, theirs.bubble)
    assert not found.value.any()
    assert (found.shortfall > 0.0).all()
    assert evaluator.simulations == 0
    assert len(evaluator.judge(tried[:0])) == 0


def test_the_cost_models_latency_is_not_asked(space: ActionSpace) -> None:
    # With the batch full its requests would wait long; at less than its capacity they do not.
    tried = actions(space, replace(GOOD, max_num_seqs=256, max_num_batched_tokens=512))
    assert CostModel(space, Priority.THROUGHPUT).judge(tried).shortfall[0] > 1.0
    found = Goodput(space, run=simulate, trace=FACTS).judge(tried)
    assert found.ok.all()
    assert found.value[0] > 0.0


def test_a_miss_is_graded_by_the_medians_of_the_best_load() -> None:
    # Nothing is that fast; an output of one token has no TPOT, and would be within any bound.
    space = ActionSpace.of(question(slo=Slo(tpot_s=0.001)))
    several = [request._replace(output_tokens=50) for request in TRACE]
    tried = actions(space, GOOD, SMALL)
    asked: list[SimTask] = []

    def run(tasks: Sequence[SimTask]) -> list[Result]:
        asked.extend(tasks)
        return [attempt_task(task, several) for task in tasks]

    found = Goodput(space, run=run, trace=TraceFacts.of(several), loads=(0.5, 1.0)).judge(tried)
    assert not found.value.any()
    assert found.shortfall[0] > found.shortfall[1] > 1.0
    medians = [run_task(task, several).tpot_s.p50 for task in asked]
    best = [min(medians[:2]) / 0.001 - 1.0, min(medians[2:]) / 0.001 - 1.0]
    assert found.shortfall == pytest.approx(best)


def test_what_completes_nothing_is_as_wrong_as_can_be(space: ActionSpace) -> None:
    long = [request._replace(prompt_tokens=100_000) for request in TRACE[:5]]
    found = Goodput(
        space,
        run=lambda tasks: [attempt_task(task, long) for task in tasks],
        trace=TraceFacts.of(long),
    ).judge(actions(space, GOOD))
    assert (found.value[0], found.shortfall[0]) == (0.0, MOST)


def test_medians_within_the_bounds_do_not_make_up_for_requests(space: ActionSpace) -> None:
    def halves(tasks: Sequence[SimTask]) -> list[Result]:
        return [
            replace(one, attained=0) if isinstance(one, Summary) else one for one in simulate(tasks)
        ]

    found = Goodput(space, run=halves, trace=FACTS).judge(actions(space, GOOD))
    assert found.value[0] == 0.0
    assert 0.0 < found.shortfall[0] < 0.01


def test_a_task_that_fails_costs_its_strategy_and_no_other(space: ActionSpace) -> None:
    def fails(tasks: Sequence[SimTask]) -> list[Result]:
        found = simulate(tasks)
        found[1] = TaskFailed(message="the process that ran it died.")
        return found

    tried = actions(space, GOOD, SMALL)
    evaluator = Goodput(space, run=fails, trace=FACTS, loads=(0.5, 1.0))
    found = evaluator.judge(tried)
    alone = Goodput(space, run=simulate, trace=FACTS, loads=(0.5, 1.0)).judge(tried[1:])
    assert (found.value[0], found.shortfall[0]) == (0.0, 1.0)
    assert (found.value[1], found.shortfall[1]) == (alone.value[0], alone.shortfall[0])
    assert evaluator.failures == ["TP4 x2, batch 48, chunk 2048: the process that ran it died."]
    assert evaluator.simulations == 4


def test_what_cannot_be_simulated_is_told_and_the_rest_is_judged(
    space: ActionSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = module.replica_spec

    def refusing(source: object, layout: Layout, **rest: object) -> object:
        if layout.max_num_seqs == SMALL.max_num_seqs:
            raise InputError("it leaves no room for prompts.")
        return made(source, layout, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "replica_spec", refusing)
    evaluator = Goodput(space, run=simulate, trace=FACTS, loads=(0.5,))
    found = evaluator.judge(actions(space, SMALL, GOOD))
    assert (found.value[0], found.shortfall[0]) == (0.0, 1.0)
    assert found.value[1] > 0.0
    assert len(evaluator.failures) == 1
    assert SMALL.describe() in evaluator.failures[0]
    assert "leaves no room for prompts" in evaluator.failures[0]
    assert evaluator.simulations == 1
    assert not Goodput(space, run=never, trace=FACTS).judge(actions(space, SMALL)).ok.any()


def test_the_same_seed_gives_the_same_answers_in_any_company(
    space: ActionSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = space.sample(np.random.default_rng(2), 7)
    evaluator = Goodput(space, run=simulate, trace=FACTS, loads=(0.5, 0.9), seed=3)
    found = evaluator.judge(tried)
    for row in range(len(tried)):
        alone = evaluator.judge(tried[row : row + 1])
        assert (alone.value[0], alone.shortfall[0]) == (found.value[row], found.shortfall[row])
        assert alone.bubble[0] == pytest.approx(found.bubble[row])
    monkeypatch.setattr(module, "_BLOCK", 2)
    again = Goodput(space, run=simulate, trace=FACTS, loads=(0.5, 0.9), seed=3).judge(tried[::-1])
    assert np.array_equal(found.value, again.value[::-1])
    assert np.array_equal(found.shortfall, again.shortfall[::-1])
    run = Recorded()
    Goodput(space, run=run, trace=FACTS, seed=3).judge(actions(space, GOOD, SMALL, GOOD))
    assert [len(call) for call in run.calls] == [10, 5]
    assert {task.seed for call in run.calls for task in call} == {3}


def test_an_archive_searches_with_it(space: ActionSpace) -> None:
    archive = Archive(Goodput(space, run=simulate, trace=FACTS, loads=(0.8,)), budget=2)
    archive.judge(actions(space, SMALL, GOOD))
    assert archive.best is not None
    assert archive.best.action == tuple(actions(space, GOOD)[0].tolist())
    assert archive.best.calls == 2


def test_a_tail_of_the_trace_costs_nothing() -> None:
    space = ActionSpace.of(question())
    run = Recorded()
    Goodput(space, run=run, trace=FACTS, loads=(0.7,)).judge(actions(space, GOOD))
    task = run.calls[0][0]
    long = tuple(
        SyntheticTrace(
            arrivals=poisson(rate=1.0),
            lengths=Independent(Lognormal(1000, 0.5), Exponential(100)),
            count=1500,
        )
    )
    whole, part = ((run_task(task, trace), TraceFacts.of(trace)) for trace in (long, long[:150]))
    rates = [goodput(one, facts, speed_up=task.speed_up) for one, facts in (whole, part)]
    assert rates[1] == pytest.approx(rates[0], rel=0.1)
    assert part[0].goodput_rps < 0.85 * rates[0]
    later = [request._replace(arrival_s=request.arrival_s + 500.0) for request in long[:150]]
    moved = goodput(run_task(task, later), TraceFacts.of(later), speed_up=task.speed_up)
    assert moved == pytest.approx(rates[1], rel=0.01)


def test_a_task_plays_the_trace_faster(space: ActionSpace) -> None:
    run = Recorded()
    Goodput(space, run=run, trace=FACTS, loads=(0.7,)).judge(actions(space, GOOD))
    task = replace(run.calls[0][0], speed_up=2.0)
    there = pickle.loads(pickle.dumps(task))
    halved = [request._replace(arrival_s=request.arrival_s / 2.0) for request in TRACE]
    assert run_task(there, TRACE) == run_task(replace(task, speed_up=1.0), halved)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=r"field 'speed_up': is .* Fix: leave it out"):
            replace(task, speed_up=wrong)


def test_nonsense_is_refused(space: ActionSpace) -> None:
    every = question(options=SpaceOptions(space=Space.ANY, batches=(16,), chunks=(512,)))
    with pytest.raises(InputError, match=r"the `any` space.* Fix: search the `vllm` space"):
        Goodput(ActionSpace.of(every), run=never, trace=FACTS)
    with pytest.raises(InputError, match=r"there are none\. Fix: pass --ttft or --tpot"):
        Goodput(ActionSpace.of(question(slo=Slo())), run=never, trace=FACTS)
    for loads in ((), (0.5, 0.0), (float("nan"),)):
        with pytest.raises(InputError, match=r"at the loads .* Fix: leave them"):
            Goodput(space, run=never, trace=FACTS, loads=loads)
    for requests in ([], [TraceRequest(1.0, 1, 1)], [TraceRequest(1.0, 1, 1)] * 2):
        with pytest.raises(InputError, match=rf"a trace of {len(requests)} request.* Fix: pass"):
            TraceFacts.of(requests)


def test_a_question_may_bring_its_own_coefficients() -> None:
    given = default_coefficients()
    space = ActionSpace.of(question(coefficients=given))
    ours = Goodput(space, run=simulate, trace=FACTS, loads=(0.8,)).judge(actions(space, GOOD))
    shipped = ActionSpace.of(question())
    theirs = Goodput(shipped, run=simulate, trace=FACTS, loads=(0.8,)).judge(actions(space, GOOD))
    assert ours.value[0] == theirs.value[0]
