"""PPO itself: RLlib's new API stack on a Ray of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cluster.errors import InputError
from cluster.ray_backend.sim_pool import local_ray
from rl_search import train
from rl_search.archive import Archive
from rl_search.checkpoint import Checkpoint
from rl_search.network import NetworkOptions
from rl_search.runs import Order, run
from rl_search.train import PpoOptions, Round, search
from tests.rl_search import searches

SMALL = PpoOptions(samples=16, chunks=2, network=NetworkOptions(width=32, head_width=16))
BUDGET = 96

pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib and gymnasium, on how they are used


@pytest.fixture(scope="module", autouse=True)
def _ray():
    with local_ray():
        yield


def searched(options=SMALL, *, seed=0, budget=BUDGET, evaluator=None, **rest):
    archive = Archive(evaluator or searches.cost_model(), budget=budget)
    rounds: list[Round] = []
    search(archive, seed, options, saved=rounds.append, **rest)
    return archive, rounds


def test_a_search_spends_its_budget_finds_something_and_does_it_again():
    archive, rounds = searched()
    assert archive.calls == BUDGET
    assert archive.best is not None
    assert archive.space.contains(archive.actions).all()
    assert {round_.chunk for round_ in rounds} == {0, 1}
    assert all(len(round_.confidence) == len(archive.space.heads) for round_ in rounds)
    again, _ = searched()
    assert (again.actions == archive.actions).all()
    other, _ = searched(seed=1)
    assert other.actions.shape != archive.actions.shape or (other.actions != archive.actions).any()


def test_learning_makes_good_strategies_likelier():
    """On a plain sum, where every head has one best value."""
    evaluator = searches.Counting(searches.space_of())
    archive, _ = searched(
        replace(SMALL, chunks=1, samples=32, learning_rate=3e-3), budget=800, evaluator=evaluator
    )
    drawn = evaluator.judge(evaluator.space.sample(np.random.default_rng(0), 800))
    late = archive.judged.value[-200:]
    assert np.median(late) > np.quantile(drawn.value, 0.95)


def test_going_on_from_a_round_is_as_if_there_had_been_no_stop():
    whole = Archive(searches.cost_model(), budget=BUDGET)
    rounds: list[tuple[int, bytes]] = []
    search(whole, 0, SMALL, saved=lambda one: rounds.append((whole.calls, one.saved())))
    for calls, saved in (rounds[1], rounds[-2]):
        archive = Archive(searches.cost_model(), budget=BUDGET)
        archive.add(whole.actions[:calls], whole.judged.take(np.arange(calls)), asked=0)
        search(archive, 0, SMALL, after=Round.loaded(saved))
        assert (archive.actions == whole.actions).all()


def test_a_nan_brings_the_last_good_weights_back_at_a_tenth_of_the_rate(monkeypatch):
    rates: list[float] = []
    good: list[dict[str, torch.Tensor]] = []
    play = train._Table.play

    def poisoned(self, before):
        if before.number == 1:
            good.append(self.learner(lambda learner: learner.state())["weights"])
            broken = train.SearchLearner._update

            def nan(learner, *args, **kwargs):
                found = broken(learner, *args, **kwargs)
                with torch.no_grad():
                    learner._network.bias.fill_(torch.nan)
                return found

            monkeypatch.setattr(train.SearchLearner, "_update", nan)
            after = play(self, before)
            monkeypatch.setattr(train.SearchLearner, "_update", broken)
        else:
            after = play(self, before)
        rates.append(
            self.learner(
                lambda learner: next(iter(learner._named_optimizers.values())).param_groups[0]["lr"]
            )
        )
        return after

    monkeypatch.setattr(train._Table, "play", poisoned)
    archive, rounds = searched(replace(SMALL, chunks=1))
    assert archive.calls == BUDGET
    assert [round_.nans for round_ in rounds][:3] == [0, 1, 1]
    back = rounds[1].learner["weights"]
    assert all(torch.equal(back[name], value) for name, value in good[0].items())
    assert rates[0] == pytest.approx(SMALL.learning_rate)
    assert rates[1:] == [pytest.approx(SMALL.learning_rate / 10)] * (len(rates) - 1)
    assert all(torch.isfinite(value).all() for value in rounds[-1].learner["weights"].values())


def test_a_sure_policy_ends_its_chunk_and_saves_calls():
    archive, rounds = searched(replace(SMALL, tau=0.0, chunks=3))
    assert [round_.chunk for round_ in rounds] == [0, 1, 2]
    assert archive.calls <= 3 * SMALL.samples < BUDGET


def test_every_chunk_begins_with_a_fresh_network_and_keeps_what_was_found():
    _, rounds = searched(replace(SMALL, chunks=3))
    last = {round_.chunk: round_.learner["weights"]["bias"] for round_ in rounds}
    first = {round_.chunk: round_.learner["weights"]["bias"] for round_ in reversed(rounds)}
    for chunk in (1, 2):
        assert first[chunk].abs().sum() < last[chunk - 1].abs().sum() * 10
        assert not torch.equal(first[chunk], last[chunk - 1])


def test_the_curriculum_begins_with_tensor_parallelism_alone():
    evaluator = searches.cost_model()
    archive, _ = searched(replace(SMALL, chunks=3, curriculum=True), evaluator=evaluator)
    first = evaluator.space.decode(archive.actions[: SMALL.samples])
    assert set(first.dp.tolist()) == set(first.pp.tolist()) == {1}
    late = evaluator.space.decode(archive.actions[-SMALL.samples :])
    assert len(set(late.dp.tolist()) | set(late.pp.tolist())) > 1


@pytest.mark.parametrize(
    "network",
    [
        NetworkOptions(width=32, autoregressive=False, copying=False),
        NetworkOptions(width=32, shared_head=True),
    ],
    ids=["article", "shared head"],
)
def test_other_networks_search_too(network):
    archive, _ = searched(replace(SMALL, network=network), budget=48)
    assert archive.calls == 48


def test_a_search_may_start_from_the_heuristic():
    order = Order(method="heuristic", budget=1000, seed=0)
    rule = run(order, searches.cost_model()).archive
    started = replace(order, method="ppo", budget=rule.calls + 20, starts=("heuristic",), ppo=SMALL)
    archive = run(started, searches.cost_model()).archive
    assert archive.calls == rule.calls + 20
    assert (archive.actions[: rule.calls] == rule.actions).all()
    spent = replace(started, budget=3)
    assert run(spent, searches.cost_model()).archive.calls == 3


def test_a_search_may_start_from_the_exact_answer_and_keeps_its_budget(tmp_path):
    order = Order(method="ppo", budget=40, seed=0, starts=("exact",), ppo=SMALL)
    optimum = run(Order(method="exact", budget=1, seed=0), searches.cost_model()).archive
    kept = Checkpoint(tmp_path / "search", {})
    outcome = run(order, searches.cost_model(), checkpoint=kept)
    archive = outcome.archive
    assert archive.calls == archive.charged + 40
    assert archive.charged == optimum.charged
    assert len(archive.memory) == 40
    assert {sure.chunk for sure in outcome.sure} == {0, 1}
    assert archive.best is not None
    assert optimum.best is not None
    assert archive.best.value >= optimum.best.value
    saved = kept.load(archive.space)
    assert saved is not None
    assert (saved.charged, len(saved.memory)) == (archive.charged, 40)


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    order = Order(method="ppo", budget=BUDGET, seed=0, ppo=SMALL)
    whole = run(order, searches.cost_model()).archive
    assert whole.calls == BUDGET

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(archive, sure):
        if sure is not None and archive.calls > BUDGET // 2:
            raise Stopped

    kept = Checkpoint(tmp_path / "search", {"asked": "this"})
    with pytest.raises(Stopped):
        run(order, searches.cost_model(), checkpoint=kept, tell=stop)
    evaluator = searches.cost_model()
    judged: list[int] = []

    class Watched:
        space = evaluator.space

        def judge(self, actions):
            judged.append(len(actions))
            return evaluator.judge(actions)

    after = run(order, Watched(), checkpoint=Checkpoint(tmp_path / "search", {"asked": "this"}))
    assert (after.archive.actions == whole.actions).all()
    assert sum(judged) < BUDGET


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"chunks": 0}, {"runners": -1}, {"runners": 65}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError, match=r"at least|Fix"):
        PpoOptions(**wrong)
