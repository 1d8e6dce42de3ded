from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.costmodel.distributions import Statistic
from cluster.errors import InputError
from cluster.model.workload import Slo
from rl_search.archive import Archive, BudgetSpent, Memory
from rl_search.elites import NICHES, Elites, features
from rl_search.enumeration import Space
from rl_search.evaluator import CostModel, Judged
from rl_search.exact import evaluate
from rl_search.question import Priority, score
from rl_search.reward import Reward
from rl_search.space import DEGREES, ActionSpace
from tests.rl_search import searches


@pytest.mark.parametrize("statistic", [Statistic.MEAN, Statistic.P99])
@pytest.mark.parametrize("space", list(Space))
@pytest.mark.parametrize("priority", list(Priority))
def test_it_agrees_with_the_exact_search_on_every_layout(space, priority, statistic):
    asked = replace(
        searches.question(space=space), slo=Slo(ttft_s=2.0, tpot_s=0.05), statistic=statistic
    )
    evaluator = CostModel(ActionSpace.of(asked), priority)
    found = evaluate(asked)
    actions = evaluator.space.encode(found.table)
    inside = np.flatnonzero(evaluator.space.contains(actions))
    judged = evaluator.judge(actions[inside])
    assert (judged.ok == found.ok[inside]).all()
    assert judged.ok.any()
    assert not judged.ok.all()
    np.testing.assert_allclose(judged.value, score(found.estimates, priority)[inside], rtol=1e-9)
    assert ((judged.bubble >= 0.0) & (judged.bubble < 1.0)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_anything_can_be_judged_and_what_is_wrong_is_told_by_how_much(seed):
    evaluator = searches.cost_model()
    rng = np.random.default_rng(seed)
    wild = np.stack([rng.integers(0, size, 40) for size in evaluator.space.sizes], axis=1)
    judged = evaluator.judge(wild)
    assert np.isfinite(judged.value).all()
    assert np.isfinite(judged.shortfall).all()
    assert (judged.shortfall[~evaluator.space.contains(wild)] > 0.0).all()


def test_a_tighter_bound_is_missed_by_more():
    asked = searches.question()
    actions = searches.space_of().sample(np.random.default_rng(0), 50)
    loose, tight = (
        CostModel(ActionSpace.of(replace(asked, slo=Slo(tpot_s=bound))), Priority.THROUGHPUT)
        for bound in (0.01, 0.005)
    )
    assert (tight.judge(actions).shortfall >= loose.judge(actions).shortfall).all()
    assert (tight.judge(actions).shortfall > loose.judge(actions).shortfall).any()


def test_a_call_is_a_strategy_and_known_ones_are_free():
    evaluator = searches.Counting(searches.space_of())
    archive = Archive(evaluator, budget=10)
    actions = evaluator.space.sample(np.random.default_rng(0), 4)
    twice = np.concatenate([actions, actions])
    first = archive.judge(twice)
    assert (archive.calls, archive.asked, evaluator.batches) == (4, 8, [4])
    again = archive.judge(actions)
    assert (archive.calls, archive.asked, evaluator.batches) == (4, 12, [4])
    assert (again.value == first.value[:4]).all()
    assert archive.left == 6


def test_a_budget_is_spent_to_the_last_call():
    evaluator = searches.Counting(searches.space_of())
    archive = Archive(evaluator, budget=5)
    actions = evaluator.space.sample(np.random.default_rng(1), 20)
    with pytest.raises(BudgetSpent):
        archive.judge(actions)
    assert archive.calls == 5 == len(archive.memory)
    judged, known = archive.judge_some(actions)
    assert known.sum() >= 5
    assert archive.calls == 5
    assert len(judged) == 20
    assert (judged.shortfall[~known] == 1.0).all()
    assert (judged.value[~known] == 0.0).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_curve_rises_to_the_best_that_satisfies_everything(seed, sizes):
    evaluator = searches.Counting(searches.space_of())
    archive, rng = Archive(evaluator, budget=1000), np.random.default_rng(seed)
    for size in sizes:
        archive.judge(evaluator.space.sample(rng, size))
    values = [found.value for found in archive.curve]
    assert values == sorted(set(values))
    judged = archive.judged
    if judged.ok.any():
        assert archive.best is not None
        assert archive.best.value == judged.value[judged.ok].max()
        assert judged.value[archive.best.calls - 1] == archive.best.value
    else:
        assert archive.best is None
    rows = archive.ranked(len(archive.memory))
    assert sorted(rows.tolist()) == list(range(len(archive.memory)))


def test_what_an_earlier_run_was_told_counts_again_and_costs_nothing():
    evaluator = searches.Counting(searches.space_of())
    actions = evaluator.space.sample(np.random.default_rng(2), 8)
    known = Memory(evaluator.space)
    known.add(actions[:5], evaluator.judge(actions[:5]))
    evaluator.batches.clear()
    archive = Archive(evaluator, budget=100, known=known)
    judged = archive.judge(actions)
    assert archive.calls == len(np.unique(actions, axis=0))
    assert evaluator.batches == [3]
    assert (judged.value == searches.Counting(evaluator.space).judge(actions).value).all()


def judged(value: float, *, shortfall: float = 0.0, bubble: float = 0.0) -> Judged:
    return Judged(np.array([value]), np.array([shortfall]), np.array([bubble]))


NEW = np.array([False])


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6), st.floats(0.1, 1e6), st.floats(0.0, 100.0))
def test_a_reward_rises_with_the_value_and_falls_with_what_is_missed(one, other, best, miss):
    reward = Reward()
    low, high = sorted((one, other))
    worse, better = (reward.of(judged(v), best=best, repeated=NEW)[0] for v in (low, high))
    assert worse <= better
    near, far = (
        reward.of(judged(one, shortfall=s), best=best, repeated=NEW)[0]
        for s in (0.01 + miss, 0.02 + 2 * miss)
    )
    assert -100.0 <= far <= near <= -10.0


def test_a_reward_is_the_articles_formula_in_percent_of_the_best():
    reward = Reward(alpha=2.0, beta=0.8, bubble=3.0, repeat=7.0)
    found = reward.of(judged(60.0, bubble=0.5), best=50.0, repeated=NEW)
    assert found[0] == pytest.approx(2.0 * 120.0 + 0.8 * (120.0 - 100.0) - 3.0 * 0.5)
    known = reward.of(judged(60.0, bubble=0.5), best=50.0, repeated=~NEW)
    assert known[0] == pytest.approx(found[0] - 7.0)


def test_without_a_best_the_batch_is_its_own_measure():
    batch = Judged(np.array([10.0, 20.0]), np.zeros(2), np.zeros(2))
    assert Reward(bubble=0.0).of(batch, best=None, repeated=np.zeros(2, dtype=bool)).tolist() == [
        pytest.approx(50.0 - 0.4 * 50.0),
        pytest.approx(100.0),
    ]
    nothing = Judged(np.zeros(1), np.ones(1), np.zeros(1))
    assert Reward().of(nothing, best=None, repeated=NEW)[0] == pytest.approx(-100.0)


@pytest.mark.parametrize(
    "wrong", [{"alpha": 0.0}, {"beta": -1.0}, {"least": 0.0}, {"least": 20.0, "most": 10.0}]
)
def test_wrong_weights_are_refused(wrong):
    with pytest.raises(InputError, match="Fix"):
        Reward(**wrong)


def archive_of(n: int, seed: int = 0) -> Archive:
    evaluator = searches.cost_model()
    archive = Archive(evaluator, budget=n)
    archive.judge(evaluator.space.sample(np.random.default_rng(seed), n))
    return archive


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_elites_are_the_best_of_different_degrees(seed, size):
    archive = archive_of(60, seed)
    elites = Elites.of(archive, size=size)
    degrees = elites.actions[:, : len(DEGREES)]
    assert len(np.unique(degrees, axis=0)) == len(elites.actions) <= size
    satisfying = elites.shortfall <= 0.0
    assert (np.diff(elites.value[satisfying]) <= 0.0).all()
    if archive.best is not None:
        assert elites.value[0] == archive.best.value


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.5, 1.0]))
def test_samples_climb_different_hills_from_their_own_best(seed, apart):
    archive = archive_of(80, seed)
    together = Elites.of(archive)
    drawn = Elites.drawn(archive, np.random.default_rng(seed), 40, together=together, apart=apart)
    again = Elites.drawn(archive, np.random.default_rng(seed), 40, together=together, apart=apart)
    assert all((a.actions == b.actions).all() for a, b in zip(drawn, again, strict=True))
    alone = [elites for elites in drawn if elites is not together]
    assert len(alone) == {0.0: 0, 1.0: 40}.get(apart, len(alone))
    for elites in alone:
        assert len(np.unique(elites.actions[:, : len(DEGREES)], axis=0)) == 1
        assert len(np.unique(elites.actions, axis=0)) == len(elites.actions) <= 4
    assert len({id(elites) for elites in alone}) <= NICHES


def test_histories_that_are_replaced_come_from_any_degrees_that_were_judged():
    archive = archive_of(80)
    known = len(np.unique(archive.actions[:, : len(DEGREES)], axis=0))
    assert known > 2 * NICHES, "the archive is too small to tell"

    def hills(anywhere):
        drawn = Elites.drawn(
            archive,
            np.random.default_rng(1),
            1000,
            together=Elites.of(archive),
            apart=1.0,
            anywhere=anywhere,
        )
        return [tuple(elites.actions[0, : len(DEGREES)]) for elites in drawn]

    best = set(hills(0.0))
    assert len(best) == NICHES
    assert len(set(hills(1.0))) == known
    half = [hill in best for hill in hills(0.5)]
    assert 0.5 < np.mean(half) < 0.7  # half of them, and those of any degrees that are the best


def test_what_the_policy_sees_tells_the_choices_and_who_is_there():
    archive = archive_of(40)
    space, best = archive.space, archive.best
    assert best is not None
    elites = Elites.of(archive, size=4)
    seen = elites.seen(space, best=best.value)
    assert seen.shape == (4, features(space))
    assert (seen[: len(elites.actions), : sum(space.sizes)].sum(axis=1) == len(space.heads)).all()
    assert seen[0, -3:].tolist() == [1.0, 0.0, 1.0]
    nobody = Elites.none(space, size=4).seen(space, best=None)
    assert not nobody.any()
