"""The game and the network, without RLlib's loop."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_search.archive import Archive, Memory
from rl_search.elites import Elites, features
from rl_search.env import Game, News, StrategyEnv, StrategyVectorEnv, Turn
from rl_search.evaluator import Judged
from rl_search.learner import beyond
from rl_search.network import NetworkOptions, PolicyNetwork
from rl_search.reward import Reward
from tests.rl_search import searches

SPACE = searches.space_of()


def game(evaluator=None, *, elites: int = 4) -> Game:
    return Game(
        evaluator=evaluator or searches.Counting(SPACE),
        reward=Reward(),
        elites=elites,
    )


def network(**options) -> PolicyNetwork:
    torch.manual_seed(0)
    made = PolicyNetwork(SPACE.sizes, features(SPACE), NetworkOptions(width=32, **options))
    with torch.no_grad():  # as if it had learnt something
        made.outer.normal_()
        made.bias.normal_()
    return made


def seen(n: int, *, calls: int = 40) -> torch.Tensor:
    archive = Archive(searches.Counting(SPACE), budget=calls)
    archive.judge(SPACE.sample(np.random.default_rng(3), calls))
    view = Elites.of(archive).seen(SPACE, best=archive.best and archive.best.value)
    return torch.from_numpy(np.repeat(view[None], n, axis=0))


def walk(net: PolicyNetwork, n: int, *, elites: torch.Tensor):
    state = np.zeros(n, dtype=np.int64)
    masks = []

    def mask(head: int) -> torch.Tensor:
        masks.append(torch.from_numpy(SPACE.mask(head, state)))
        return masks[-1]

    def choose(head: int, logits: torch.Tensor) -> torch.Tensor:
        nonlocal state
        choice = torch.multinomial(torch.softmax(logits, dim=1), 1)[:, 0]
        state = SPACE.follow(head, state, choice.numpy())
        return choice

    with torch.no_grad():
        logits, choices = net.propose(elites, mask, choose)
    return logits, choices, torch.cat(masks, dim=1)


OPTIONS = [
    {"autoregressive": a, "copying": c, "shared_head": s}
    for a, c, s in product((True, False), repeat=3)
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("elites", [0, 40])
def test_proposals_keep_the_masks_and_are_judged_by_the_logits_they_had(options, elites):
    net = network(**options)
    view = seen(16) if elites else torch.zeros(16, 4, features(SPACE))
    logits, choices, masks = walk(net, 16, elites=view)
    assert SPACE.contains(choices.numpy()).all()
    assert torch.isfinite(logits).all()
    with torch.no_grad():
        again = net.judge(view, choices, masks)
    torch.testing.assert_close(again, logits, rtol=1e-4, atol=1e-4)
    probabilities = torch.cat([torch.softmax(p, 1) for p in logits.split(SPACE.sizes, 1)], 1)
    assert (probabilities[~masks] == 0.0).all()


def test_only_autoregressive_heads_know_what_was_chosen_before():
    for autoregressive in (True, False):
        net = network(autoregressive=autoregressive, copying=False)
        view = seen(2)
        allowed = torch.ones(2, sum(SPACE.sizes), dtype=torch.bool)
        choices = torch.zeros(2, len(SPACE.heads), dtype=torch.long)
        choices[1, 0] = 1
        with torch.no_grad():
            logits = net.judge(view, choices, allowed)
        one, other = logits[0].split(SPACE.sizes), logits[1].split(SPACE.sizes)
        assert torch.allclose(one[0], other[0])
        assert torch.allclose(one[-1], other[-1]) is not autoregressive


def test_an_untrained_policy_varies_what_the_elites_agree_on():
    torch.manual_seed(0)
    net = PolicyNetwork(SPACE.sizes, features(SPACE), NetworkOptions(width=32, keep=0.9))
    archive = Archive(searches.Counting(SPACE), budget=1)
    archive.judge(SPACE.sample(np.random.default_rng(0), 1))
    view = Elites.of(archive).seen(SPACE, best=None)
    n = 400
    _, choices, _ = walk(net, n, elites=torch.from_numpy(np.repeat(view[None], n, axis=0)))
    same = (choices.numpy() == archive.actions[0]).mean()
    assert 0.8 < same < 0.99


def test_gymnasium_finds_nothing_wrong_with_the_environment():
    check_env(StrategyEnv(game(), length=5), skip_render_check=True)


def test_an_episode_is_as_long_as_asked():
    env = StrategyEnv(game(), length=3)
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[3] for _ in range(3)]
    assert ends == [False, False, True]


def test_a_step_is_one_call_for_what_is_new():
    evaluator = searches.Counting(SPACE)
    env = StrategyVectorEnv(game(evaluator), 8)
    env.reset()
    actions = SPACE.sample(np.random.default_rng(0), 8)
    env.step(actions)
    env.step(actions)
    assert evaluator.batches == [len(np.unique(actions, axis=0))]


def test_a_round_tells_what_was_judged_once_and_keeps_to_its_calls():
    evaluator = searches.Counting(SPACE)
    env = StrategyVectorEnv(game(evaluator), 8)
    known = SPACE.sample(np.random.default_rng(1), 8)
    nothing = Memory(SPACE)
    nothing.add(known[:2], evaluator.judge(known[:2]))
    evaluator.batches.clear()
    turn = Turn(elites=(Elites.none(SPACE),) * 8, best=None, left=3)
    env.begin(turn, News(actions=nothing.actions, judged=nothing.judged, asked=0))
    env.reset()
    _, rewards, *_ = env.step(known)
    assert evaluator.batches == [3]
    assert np.isfinite(rewards).all()
    judged = env.memory.find(known) >= 0
    assert not judged.all()
    assert set(rewards[~judged].tolist()) == {float(np.median(rewards[judged]))}
    news = env.news()
    assert (len(news.actions), news.asked) == (3, 8)
    assert (news.judged.value == evaluator.judge(news.actions).value).all()
    assert len(env.news().actions) == 0


def test_repeated_strategies_are_worth_less():
    env = StrategyVectorEnv(game(), 4)
    env.reset()
    actions = SPACE.repaired(np.ones((4, len(SPACE.heads)), dtype=np.int64))
    first = env.step(actions)[1]
    again = env.step(actions)[1]
    assert (again < first).all()


def test_everybody_sees_one_history():
    view, _ = StrategyVectorEnv(game(), 5).reset()
    assert view.shape == (5, 4, features(SPACE))
    assert (view == view[0]).all()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50.0, 50.0), min_size=5, max_size=40, unique=True), st.floats(0.1, 0.9))
def test_only_the_better_part_of_a_batch_is_learnt_from(values, top):
    advantages = torch.tensor(values)
    mask = torch.ones(len(values), dtype=torch.bool)
    mask[0] = False
    found = beyond(advantages, mask, top=top)
    assert found[0] == 0.0
    assert (found >= 0.0).all()
    kept = found[1:] > 0.0
    assert int(kept.sum()) <= int(np.ceil(top * (len(values) - 1))) + 1
    worst_kept = advantages[1:][kept].min() if kept.any() else torch.inf
    assert (advantages[1:][~kept] <= worst_kept).all()


def test_all_of_a_batch_is_plain_ppo():
    advantages = torch.tensor([1.0, 2.0, 3.0, 6.0])
    found = beyond(advantages, None, top=1.0)
    torch.testing.assert_close(found, (advantages - 3.0) / advantages.std())


def test_what_satisfies_nothing_still_tells_which_way_to_go():
    batch = Judged(np.zeros(2), np.array([0.1, 0.9]), np.zeros(2))
    near, far = Reward().of(batch, best=None, repeated=np.zeros(2, dtype=bool))
    assert near > far
