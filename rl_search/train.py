"""How does PPO search? Chunks of the budget, rounds of samples, and what keeps it on its way.

    for every chunk of the budget:
        a fresh network; the elites stay
        until the chunk's calls are spent or every head is sure:
            the env runners propose strategies and have them judged     (RLlib, on Ray)
            the learner updates the policy                              (PPO)
            a NaN brings the last good weights back, at a tenth of the learning rate
            histories that stand still are half replaced
            the search is saved

Everything random follows from the seed, the chunk and the round, so that a search gives the same
plan again, and one that was interrupted goes on as if it had not been.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import ray
import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.tune.registry import register_env

from cluster.errors import InputError, UnavailableError
from rl_search.archive import Archive
from rl_search.elites import SIZE, Elites
from rl_search.env import Game, News, StrategyVectorEnv, Turn
from rl_search.learner import TOP, SearchLearner, State
from rl_search.module import StrategyModule
from rl_search.network import NetworkOptions
from rl_search.reward import Reward

SLOWER = 0.1  # of the learning rate, after a NaN
MOST_NANS = 3  # in one chunk
PATIENCE_S = 60  # for env runners that were all lost
REPLACED = 0.5  # of the histories that stand still
IDLE = 10  # rounds without a new strategy, after which a chunk has nothing more to say


@dataclass(frozen=True, kw_only=True)
class PpoOptions:
    """The settings. `samples` a round, over all env runners; `runners` 0: in this process.

    `tau`: a chunk ends when every head's largest probability reaches it, above 1 never.
    `apart`: the share of samples that see one choice of degrees alone.
    `stagnation`: rounds without a better strategy before half the histories are replaced.
    `curriculum`: the first chunk chooses tp alone, the second dp and ep too, the others all.
    """

    samples: int = 64
    chunks: int = 5
    tau: float = 0.95
    elites: int = SIZE
    apart: float = 0.8
    stagnation: int = 3
    top: float = 0.2
    learning_rate: float = 1e-3
    epochs: int = 4
    clip: float = 0.2
    entropy: float = 0.05
    gradient_norm: float = 0.5
    curriculum: bool = False
    runners: int = 0
    round_s: float = 600.0
    reward: Reward = field(default_factory=Reward)
    network: NetworkOptions = field(default_factory=NetworkOptions)

    def __post_init__(self) -> None:
        for name in ("samples", "chunks", "elites", "stagnation", "epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.runners < 0 or self.samples < self.runners:
            raise InputError(
                f"{self.runners} env runners with {self.samples} samples a round: there must be 0 "
                "or more, each with at least one sample. Fix: use fewer runners."
            )


@dataclass(frozen=True, kw_only=True)
class Round:
    """Where the search stands after a round: what is shown, and what it goes on from.

    `confidence` per head; `still` rounds without a better strategy, `idle` without a new one;
    `nodes`: where the proposals were made; `begun`: calls made before the first round.
    """

    chunk: int = 0
    number: int = 0
    still: int = 0
    idle: int = 0
    nans: int = 0
    over: bool = False  # the chunk has ended
    confidence: tuple[float, ...] = ()
    nodes: tuple[str, ...] = ()
    begun: int = 0
    learner: State = field(default_factory=dict)

    def saved(self) -> bytes:
        """As `loaded` takes it."""
        return pickle.dumps(self)

    @classmethod
    def loaded(cls, data: bytes) -> Round:
        """What `saved` gave. Unpickles: only from files this user wrote."""
        found = pickle.loads(data)
        if not isinstance(found, cls):
            raise InputError("the checkpoint does not hold a round of a search.")
        return found


Saved = Callable[[Round], None]


def search(
    archive: Archive,
    seed: int,
    options: PpoOptions,
    *,
    after: Round | None = None,
    saved: Saved = lambda _: None,
) -> None:
    """Spend the archive's budget. `after`: the round that an interrupted search had saved.

    `saved` is told after every round. Raises UnavailableError where no env runner answers.
    """
    current = after or Round(begun=archive.calls)
    with _algorithm(archive, options, seed=seed) as algorithm:
        table = _Table(algorithm, archive, options, seed=seed)
        if after is not None:
            table.learner(lambda learner: learner.resume(current.learner))
        for chunk in range(current.chunk, options.chunks):
            if chunk > current.chunk or after is None:
                current = Round(chunk=chunk, number=current.number, begun=current.begun)
                table.begin_chunk(chunk, anew=True)
            else:
                table.begin_chunk(chunk, anew=False)
            share = (archive.budget - current.begun) * (chunk + 1) // options.chunks
            end = current.begun + share
            while not current.over and archive.calls < end:
                current = table.play(current)
                saved(current)
            after = None


class _Table:
    """One search at its game: the algorithm, the archive, and the history between rounds."""

    def __init__(
        self, algorithm: Algorithm, archive: Archive, options: PpoOptions, *, seed: int
    ) -> None:
        self._algorithm, self._archive, self._options = algorithm, archive, options
        self._seed = seed

    def begin_chunk(self, chunk: int, *, anew: bool) -> None:
        """Fresh weights if `anew`, and the heads that the curriculum has reached."""
        space = self._archive.space.frozen(_held(chunk, options=self._options))
        if anew:
            seed = _mixed(self._seed, chunk)
            self.learner(lambda learner: learner.renew(seed))
        self.learner(lambda learner: learner.play_in(space))
        self._runners(lambda runner: setattr(runner.module, "space", space))
        self._space = space

    def play(self, before: Round) -> Round:
        """One round: propose, judge, learn; then what went wrong is put right."""
        archive, options = self._archive, self._options
        good = before.learner or self.learner(lambda learner: learner.state())
        calls, best = archive.calls, archive.best
        value = None if best is None else best.value
        seed = _mixed(self._seed, before.chunk, before.number)
        self._send(self._histories(before), value, weights=good["weights"], seed=seed)
        self._algorithm.train()
        nodes = self._receive()
        nans = before.nans
        if not self.learner(lambda learner: learner.finite()):
            nans += 1
            self.learner(lambda learner: learner.back_to(good, slower=SLOWER))
        seen = Elites.of(archive, size=options.elites).seen(archive.space, best=value)
        space = self._space
        confidence = self.learner(lambda learner: learner.confidence(seen, space))
        idle = before.idle + 1 if archive.calls == calls else 0
        sure = min(confidence) >= options.tau
        return replace(
            before,
            number=before.number + 1,
            still=before.still + 1 if archive.best == best else 0,
            idle=idle,
            nans=nans,
            over=sure or idle >= IDLE or nans > MOST_NANS,
            confidence=confidence,
            nodes=nodes,
            learner=self.learner(lambda learner: learner.state()),
        )

    def learner(self, act: Callable[[Any], Any]) -> Any:
        """`act` on the learner, its weights then given to the env runners."""
        return self._algorithm.learner_group.foreach_learner(act).result_or_errors[0].get()

    def _histories(self, before: Round) -> tuple[Elites, ...]:
        """One for each sample of the next round."""
        archive, options = self._archive, self._options
        if not archive.calls:
            return (Elites.none(archive.space, size=options.elites),) * options.samples
        rng = np.random.default_rng([self._seed, before.chunk, before.number])
        return Elites.drawn(
            archive,
            rng,
            options.samples,
            together=Elites.of(archive, size=options.elites),
            apart=options.apart,
            anywhere=REPLACED if before.still >= options.stagnation else 0.0,
        )

    def _send(
        self, histories: tuple[Elites, ...], best: float | None, *, weights: State, seed: int
    ) -> None:
        """The turn to every env runner: weights, histories, its share of the calls, the past."""
        archive, group = self._archive, self._algorithm.env_runner_group
        known = News(actions=archive.actions, judged=archive.judged, asked=0)
        playing = sorted(group.healthy_worker_ids()) or [0]
        share, rest = divmod(archive.left, len(playing))

        def begin(runner: Any) -> None:
            index, samples = runner.worker_index, runner.num_envs
            first = samples * max(0, index - 1)
            torch.manual_seed(_mixed(seed, index))
            more = index in playing[:rest]
            own = histories[first : first + samples]
            turn = Turn(elites=own, best=best, left=share + more)
            # RLlib gives weights on by the number of updates, which knows of no fresh network.
            runner.module.network.load_state_dict(weights)
            runner.env.unwrapped.begin(turn, known)
            runner._needs_initial_reset = True  # what it has seen last is not this history

        self._runners(begin)

    def _receive(self) -> tuple[str, ...]:
        """What was judged, into the archive; the nodes that it came from."""
        heard = self._runners(_news)
        waited = 0
        while not heard and waited < PATIENCE_S:  # all lost at once: RLlib restarts them
            time.sleep(1.0)
            waited += 1
            self._algorithm.restore_env_runners(self._algorithm.env_runner_group)
            heard = self._runners(_news)
        if not heard:
            raise UnavailableError(
                "no env runner of the search answers any more. Fix: see that the cluster has CPUs "
                "for them, then run the same command again: it goes on from the last round."
            )
        for _, news in heard:
            self._archive.add(news.actions, news.judged, asked=news.asked)
        return tuple(sorted({node for node, _ in heard}))

    def _runners(self, act: Callable[[Any], Any]) -> list[Any]:
        local = self._options.runners == 0
        found: list[Any] = self._algorithm.env_runner_group.foreach_env_runner(
            act, local_env_runner=local
        )
        return found


def _news(runner: Any) -> tuple[str, News]:
    """Where an env runner is, and what was judged there since the last time."""
    return ray.get_runtime_context().get_node_id(), runner.env.unwrapped.news()


def _held(chunk: int, *, options: PpoOptions) -> tuple[str, ...]:
    """Heads that the curriculum does not let choose yet."""
    if not options.curriculum or chunk >= 2:
        return ()
    return ("dp", "pp", "ep") if chunk == 0 else ("pp",)


@contextmanager
def _algorithm(archive: Archive, options: PpoOptions, *, seed: int) -> Iterator[Algorithm]:
    """RLlib's PPO on this game, stopped at the end."""
    for name in ("ray.rllib", "ray._common.deprecation"):  # of its own calls, and of lost runners
        logging.getLogger(name).setLevel(logging.CRITICAL)
    torch.set_num_threads(1)  # the network is small: threads cost more than they bring
    algorithm = configured(_game(archive, options), options, seed=seed).build_algo()
    if options.runners:
        group = algorithm.env_runner_group
        # RLlib offers no placement without Tune; runners belong on as many nodes as there are.
        group._remote_args["scheduling_strategy"] = "SPREAD"
        group.add_workers(options.runners)
    try:
        yield algorithm
    finally:
        algorithm.stop()


def _game(archive: Archive, options: PpoOptions) -> Game:
    return Game(
        evaluator=archive.evaluator,
        reward=options.reward,
        elites=options.elites,
    )


def configured(game: Game, options: PpoOptions, *, seed: int) -> PPOConfig:
    """The algorithm's configuration."""
    samples = options.samples // max(1, options.runners)
    name = f"strategies-{uuid4().hex}"  # searches of one cluster share the registry of names
    # By reference: what a restarted env runner is made from must not be part of its arguments.
    register_env(name, partial(_made, ray.put(game)))
    batch = samples * max(1, options.runners)
    spec = RLModuleSpec(
        module_class=StrategyModule,
        observation_space=game.observation_space(),
        action_space=game.action_space(),
        model_config={"space": game.space, "network": options.network},
    )
    return (
        PPOConfig()
        .environment(env=name, disable_env_checking=True)
        .env_runners(
            num_env_runners=0,  # added by `_algorithm`
            num_envs_per_env_runner=samples,
            rollout_fragment_length=1,
            gym_env_vectorize_mode="vector_entry_point",
            sample_timeout_s=options.round_s,
        )
        .learners(
            num_learners=0,
            learner_class=SearchLearner,
            learner_config_dict={TOP: options.top},
        )
        .rl_module(rl_module_spec=spec)
        .training(
            lr=options.learning_rate,
            gamma=0.0,  # a strategy is complete: nothing follows from it
            lambda_=0.0,
            train_batch_size_per_learner=batch,
            minibatch_size=None,
            num_epochs=options.epochs,
            shuffle_batch_per_epoch=False,
            clip_param=options.clip,
            entropy_coeff=options.entropy,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5e-4,  # rewards are percents
            grad_clip=options.gradient_norm,
            grad_clip_by="global_norm",
        )
        .fault_tolerance(restart_failed_env_runners=True)
        .debugging(seed=seed, log_level="ERROR")
    )


def _made(game: Any, context: Any) -> StrategyVectorEnv:
    return StrategyVectorEnv(ray.get(game), context["num_envs"])


def _mixed(*parts: int) -> int:
    """One seed from several numbers."""
    return int(np.random.SeedSequence([part % 2**32 for part in parts]).generate_state(1)[0])
