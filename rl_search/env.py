"""What does the policy play? Every step is n complete strategies, judged in one call.

An observation is the history of elites. There is no end: a history goes on until the budget does.
What is known already is answered from memory, the rest by the evaluator as far as calls are left.

Invariants: the same strategies cost one call; rewards are finite; what the evaluator said since the
last `news` is in them, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rl_search.archive import Memory
from rl_search.elites import Elites, features
from rl_search.evaluator import Evaluator, Judged
from rl_search.reward import Reward
from rl_search.space import ActionSpace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Seen = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Game:
    """What is played: the evaluator, the reward, the size of the history."""

    evaluator: Evaluator
    reward: Reward
    elites: int

    @property
    def space(self) -> ActionSpace:
        """Which strategies there are."""
        return self.evaluator.space

    def observation_space(self) -> gym.spaces.Box:
        """Of one sample."""
        shape = (self.elites, features(self.space))
        return gym.spaces.Box(0.0, 10.0, shape, dtype=np.float32)

    def action_space(self) -> gym.spaces.MultiDiscrete:
        """Of one sample."""
        return gym.spaces.MultiDiscrete(list(self.space.sizes))


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a round begins with: a history per sample, the best so far, and the calls left."""

    elites: tuple[Elites, ...]
    best: float | None
    left: int


@dataclass(frozen=True, kw_only=True)
class News:
    """What was judged since one last asked, and how many strategies were proposed."""

    actions: Ints
    judged: Judged
    asked: int


class StrategyVectorEnv(VectorEnv[Seen, Ints, Any]):
    """n samples, each with its history; a step is one call of the evaluator."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, game: Game, num_envs: int) -> None:
        self.game, self.num_envs = game, num_envs
        self.single_observation_space = game.observation_space()
        self.single_action_space = game.action_space()
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.memory = Memory(game.space)
        nothing = Elites.none(game.space, size=game.elites)
        self._turn = Turn(elites=(nothing,) * num_envs, best=None, left=2**31)
        self._told, self._asked = 0, 0

    def begin(self, turn: Turn, news: News) -> None:
        """Go on from `turn`, knowing what others were told."""
        self.memory.add(news.actions, news.judged)
        self._turn, self._told = turn, len(self.memory)

    def news(self) -> News:
        """What was judged here since the last time."""
        rows = np.arange(self._told, len(self.memory))
        self._told, asked, self._asked = len(self.memory), self._asked, 0
        return News(
            actions=self.memory.actions[rows],
            judged=self.memory.judged.take(rows) if len(rows) else Judged.nothing(0),
            asked=asked,
        )

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """The history as it stands; nothing here is left to chance."""
        super().reset(seed=seed[0] if isinstance(seed, list) else seed, options=options)
        return self._seen(), {}

    def step(
        self, actions: Ints
    ) -> tuple[Seen, Floats, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Judge n strategies at once."""
        chosen = np.asarray(actions, dtype=np.int64)
        repeated = self.memory.find(chosen) >= 0
        new = self.memory.unknown(chosen, most=self._turn.left - (len(self.memory) - self._told))
        if len(new):
            self.memory.add(chosen[new], self.game.evaluator.judge(chosen[new]))
        self._asked += len(chosen)
        judged, known = self.memory.recall(chosen)
        rewards = self.game.reward.of(judged, best=self._turn.best, repeated=repeated)
        if known.any():  # what no calls were left for says neither good nor bad
            rewards = np.where(known, rewards, np.median(rewards[known]))
        never = np.zeros(self.num_envs, dtype=bool)
        return self._seen(), rewards, never, never, {}

    def _seen(self) -> Seen:
        turn, made = self._turn, {}
        for elites in turn.elites:
            if id(elites) not in made:  # many samples have the same
                made[id(elites)] = elites.seen(self.game.space, best=turn.best)
        return np.stack([made[id(elites)] for elites in turn.elites])


class StrategyEnv(gym.Env[Seen, Ints]):
    """The same with one sample, for whoever has no vectors. An episode is `length` strategies.

    The history is the best of the strategies judged here.
    """

    def __init__(self, game: Game, *, length: int = 64) -> None:
        self.observation_space = game.observation_space()
        self.action_space: gym.Space[Ints] = game.action_space()  # type: ignore[assignment]
        self._game, self._length = game, length
        self._batch = StrategyVectorEnv(game, 1)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, dict[str, Any]]:
        """An empty history."""
        super().reset(seed=seed, options=options)
        self._batch, self._steps = StrategyVectorEnv(self._game, 1), 0
        seen, info = self._batch.reset()
        return seen[0], info

    def step(self, action: Ints) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        """Judge one strategy."""
        seen, rewards, _, _, info = self._batch.step(np.asarray(action)[None])
        self._steps += 1
        return seen[0], float(rewards[0]), False, self._steps >= self._length, info
