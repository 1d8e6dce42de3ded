from __future__ import annotations

import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import InputError, UnavailableError, UnknownNameError
from cluster.model.workload import Slo
from rl_search.archive import Archive
from rl_search.baselines.anneal import COLD, HOT, temperature
from rl_search.baselines.moves import Moves, heights
from rl_search.enumeration import Space, SpaceOptions
from rl_search.evaluator import CostModel, Judged
from rl_search.exact import evaluate, ranked
from rl_search.methods import METHODS, run_method
from rl_search.question import Priority, score
from rl_search.space import ActionSpace
from tests.costmodel import specs
from tests.rl_search import searches

GUIDED = ("anneal", "genetic", "tpe")
SEARCHES = ("random", *GUIDED)
ASKED = [
    ("qwen3-30b-a3b", "2x8xH100", Space.ANY),
    ("qwen3-30b-a3b", "2x8xH100", Space.VLLM),
    ("llama-3.1-70b", "1x8xH200", Space.ANY),
    ("smollm2-135m-instruct", "9xH100", Space.VLLM),
]
TINY = SpaceOptions(space=Space.VLLM, batches=(16, 64), chunks=(512, 2048), max_devices=4)


def searched(method, evaluator, *, budget=150, seed=0):
    archive = Archive(evaluator, budget=budget)
    run_method(method, archive, seed)
    return archive


def tiny_space(**changes):
    return ActionSpace.of(replace(searches.question(), **{"options": TINY, **changes}))


def judge_by_value(space):
    """A cost model of a space, its pick and the value of that."""
    evaluator = CostModel(space, Priority.THROUGHPUT)
    evaluated = evaluate(space.question)
    (index,) = ranked(evaluated, evaluator.priority, top=1)
    picked = space.encode(evaluated.table.take(np.array([index])))[0]
    return (
        evaluator,
        tuple(picked),
        score(evaluated.estimates, evaluator.priority)[index],
        evaluated,
    )


@pytest.mark.parametrize("method", SEARCHES)
@pytest.mark.parametrize("budget", [1, 70, 150])
def test_a_search_spends_its_budget_and_no_more(method, budget):
    evaluator = searches.Counting(searches.space_of())
    archive = searched(method, evaluator, budget=budget)
    assert archive.calls == sum(evaluator.batches) == budget
    assert archive.space.contains(archive.actions).all()


@pytest.mark.parametrize("budget", [1, 40])
def test_the_heuristic_stops_at_the_budget(budget):
    assert searched("heuristic", searches.cost_model(), budget=budget).calls == budget


@pytest.mark.parametrize("method", [*SEARCHES, "heuristic"])
def test_the_same_seed_takes_the_same_way_whatever_others_draw(method):
    def way(seed):
        random.seed(next(noise))
        before = random.getstate(), np.random.get_state()[1].tolist()
        archive = searched(method, searches.Counting(searches.space_of()), budget=120, seed=seed)
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        return archive.actions.tolist(), archive.curve

    noise = iter(range(3))
    first = way(1)
    assert way(1) == first
    assert (way(2) == first) == (method == "heuristic")  # which draws nothing


@pytest.mark.parametrize("method", SEARCHES)
def test_an_interrupted_search_takes_the_way_it_took_at_no_cost(method):
    evaluator = searches.Counting(searches.space_of())
    first = searched(method, evaluator, budget=100)
    asked = len(evaluator.batches)
    again = Archive(evaluator, budget=100, known=first.memory)
    run_method(method, again, 0)
    assert len(evaluator.batches) == asked
    assert (again.actions == first.actions).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_best_satisfies_everything(method):
    evaluator = searches.cost_model(*ASKED[2])
    archive = searched(method, evaluator, budget=100)
    assert archive.best is not None
    actions = np.array([archive.best.action])
    judged = evaluator.judge(actions)
    assert evaluator.space.contains(actions).all()
    assert judged.ok.all()
    assert judged.value[0] == pytest.approx(archive.best.value)
    assert archive.best.calls <= archive.calls


def test_guided_searches_beat_luck_and_come_close():
    evaluator, _, most, _ = judge_by_value(searches.space_of("llama-3.1-70b", "1x8xH200"))
    lucky = searched("random", evaluator, budget=200).best.value
    assert lucky < 0.8 * most
    for method in GUIDED:
        assert 0.85 * most < searched(method, evaluator, budget=200).best.value <= 1.001 * most


@pytest.mark.parametrize("method", METHODS)
def test_a_space_smaller_than_the_budget_is_searched_to_its_end(method):
    space = tiny_space()
    size = space.size
    assert 10 < size < 100
    evaluator, _, most, _ = judge_by_value(space)
    archive = searched(method, evaluator, budget=100_000)
    assert archive.best.value == pytest.approx(most, rel=0.05 if method == "heuristic" else 1e-9)
    assert len(archive.memory) <= size


@pytest.mark.parametrize("method", METHODS)
def test_a_space_of_one_strategy_ends(method):
    options = SpaceOptions(batches=(16,), chunks=(512,), max_devices=1)
    space = tiny_space(options=options, group=specs.group(memory_bytes=192 * specs.GIB))
    assert space.size == 1
    archive = searched(method, CostModel(space, Priority.THROUGHPUT), budget=50)
    assert archive.best is not None
    assert len(archive.memory) == 1


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_found_where_nothing_keeps_the_bounds(method):
    space = tiny_space(slo=Slo(tpot_s=1e-9))
    archive = searched(method, CostModel(space, Priority.THROUGHPUT), budget=100_000)
    assert archive.calls > 0
    assert archive.best is None


@pytest.mark.parametrize("method", METHODS)
def test_no_call_is_made_where_nothing_fits(method):
    space = tiny_space(group=specs.group(memory_bytes=8 * specs.GIB))
    assert space.size == 0
    archive = searched(method, CostModel(space, Priority.THROUGHPUT), budget=100)
    assert (archive.calls, archive.best) == (0, None)


@pytest.mark.parametrize("method", SEARCHES)
def test_a_search_goes_on_from_what_is_known(method):
    evaluator = searches.cost_model()
    archive = Archive(evaluator, budget=200)
    run_method("heuristic", archive, 0)
    known = archive.calls
    archive.budget = known + 100
    run_method(method, archive, 0)
    assert archive.calls == known + 100


@settings(max_examples=25, deadline=None)
@given(
    asked=st.sampled_from(ASKED),
    gib=st.sampled_from([16, 24, 48, 80, 192]),
    nodes=st.sampled_from([1, 2, 8]),
)
def test_the_heuristic_keeps_megatrons_dims_inside_a_domain(asked, gib, nodes):
    question = searches.question(*asked)
    device = replace(question.group.device, memory_bytes=gib * specs.GIB)
    group = replace(question.group, nodes=nodes, device=device)
    options = replace(question.options, batches=(8, 64), chunks=(512, 2048), max_devices=None)
    space = ActionSpace.of(
        replace(question, group=group, options=options, cross_domain_tp=True, slo=Slo())
    )
    archive = searched("heuristic", CostModel(space, Priority.THROUGHPUT), budget=1000)
    if not archive.calls:
        return
    assert space.contains(archive.actions).all()
    # Memory is told before anything is judged, so all that is judged fits.
    assert archive.judged.ok.any()
    table = space.decode(archive.actions)
    assert (table.tp <= group.domain_devices).all()
    assert table.dims is None or set(table.assignments) == {()}


def grids_tried(*asked):
    """(tp, dp, pp, moe_ep) that the heuristic judges."""
    space = searches.space_of(*asked)
    archive = searched("heuristic", CostModel(space, Priority.THROUGHPUT), budget=5000)
    assert archive.best is not None
    table = space.decode(archive.actions)
    columns = (table.tp, table.dp, table.pp, table.moe_ep)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_the_heuristic_adds_no_stages_where_a_domain_holds_the_model():
    # All eight ranks of it, and the two that are enough.
    assert grids_tried("llama-3.1-70b", "1x8xH200") == {(8, 1, 1, 1), (2, 1, 1, 1)}


def test_the_heuristic_goes_across_nodes_in_stages():
    assert grids_tried("llama-3.1-405b", "4x8xH100") == {(8, 1, 2, 1), (8, 1, 4, 1)}


def test_the_heuristic_spreads_experts_before_it_cuts_them():
    tried = grids_tried("qwen3-235b-a22b", "4x8xH100")
    assert {(8, 1, 1, 8), (8, 1, 1, 1)} <= tried


def test_the_heuristic_tries_other_grids_only_where_none_of_its_own_keeps_the_bounds():
    loose = searched("heuristic", searches.cost_model(), budget=5000)
    assert loose.best is not None
    space = ActionSpace.of(replace(searches.question(), slo=Slo(tpot_s=1e-9)))
    strict = searched("heuristic", CostModel(space, Priority.THROUGHPUT), budget=5000)
    assert strict.calls > loose.calls
    assert strict.best is None


@pytest.mark.parametrize("asked", ASKED[1:3])
@pytest.mark.parametrize("budget", [10, 10_000_000])
def test_exact_answers_with_the_pick_of_the_exact_search(asked, budget):
    evaluator, picked, value, evaluated = judge_by_value(searches.space_of(*asked))
    archive = searched("exact", evaluator, budget=budget)
    assert archive.best.action == picked
    assert archive.best.value == pytest.approx(value, rel=1e-9)
    assert archive.calls == archive.best.calls == evaluated.considered
    assert archive.budget == max(budget, archive.calls)


def test_exact_follows_the_priority():
    space = searches.space_of(*ASKED[1])
    users = searched("exact", CostModel(space, Priority.INTERACTIVE))
    devices = searched("exact", CostModel(space, Priority.THROUGHPUT))
    assert users.best.action != devices.best.action


def test_exact_needs_the_cost_model():
    with pytest.raises(InputError, match=r"cost model.*Counting.*Fix:"):
        searched("exact", searches.Counting(searches.space_of()))


def test_an_unknown_method_is_told_what_there_is():
    with pytest.raises(UnknownNameError, match="Did you mean genetic"):
        searched("genetics", searches.cost_model())


@pytest.mark.parametrize(("method", "library"), [("genetic", "deap"), ("tpe", "optuna")])
def test_a_missing_library_is_told_with_the_remedy(method, library, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UnavailableError, match=rf"{method}.*{library}.*shardwise\[rl\]"):
        searched(method, searches.Counting(searches.space_of()))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(ASKED), st.floats(0, 1), st.lists(st.booleans()))
def test_a_move_keeps_the_masks_and_what_is_not_to_move(seed, asked, far, which):
    space, rng = searches.space_of(*asked), np.random.default_rng(seed)
    actions = space.sample(rng, 8)
    heads = np.zeros(actions.shape, dtype=bool)
    heads[:, : len(which)] = which[: len(space.heads)]
    moved = Moves(space, far).moved(rng, actions, heads)
    assert space.contains(moved).all()
    first = heads.argmax(axis=1)
    for row, before, after in zip(first.tolist(), actions, moved, strict=True):
        assert (before[:row] == after[:row]).all()  # repairs come after what was changed
    if not heads.any():
        assert (moved == actions).all()


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0, 1)), min_size=2, max_size=8))
def test_what_satisfies_everything_stands_above_what_does_not(rows):
    value, missed = (np.array(column) for column in zip(*rows, strict=True))
    shortfall = np.where(missed < 0.5, 0.0, missed)
    judged = Judged(value, shortfall, np.zeros(len(value)))
    for best in (None, 1e-3):
        height = heights(judged, best=best)
        assert (height[judged.ok] > 0).all()
        assert (height[~judged.ok] < 0).all()
        order = np.argsort(height[judged.ok], kind="stable")
        assert (np.diff(value[judged.ok][order]) >= 0).all()


def test_it_gets_colder_over_the_budget():
    heat = [temperature(spent) for spent in (0.0, 0.5, 1.0)]
    assert heat[0] == pytest.approx(HOT)
    assert heat[2] == pytest.approx(COLD)
    assert heat[0] / heat[1] == pytest.approx(heat[1] / heat[2])
