"""How does a search run from its order to its outcome, whatever the method, and after a stop?

A method that keeps no state of its own goes through its calls again: what was judged is answered
from the checkpoint, at no cost, so it comes to where it was. PPO goes on from its last round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.errors import InputError, UnavailableError
from rl_search.archive import Archive, BudgetSpent
from rl_search.checkpoint import Checkpoint, Saved
from rl_search.evaluator import Evaluator
from rl_search.methods import METHODS, run_method

if TYPE_CHECKING:
    from rl_search.train import PpoOptions, Round

PPO = "ppo"
STARTS = ("heuristic", "exact")
_SAVES = 50  # of a whole budget, by methods that have no rounds


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be run. `starts`: methods whose answers are judged first (their calls count).

    `ppo`: settings of that method, None for the default ones.
    """

    method: str
    budget: int
    seed: int
    starts: tuple[str, ...] = ()
    ppo: PpoOptions | None = None

    def __post_init__(self) -> None:
        known = method_names()
        if self.method not in known:
            raise InputError(f"no search method '{self.method}'. Fix: one of {', '.join(known)}.")
        if self.budget < 1:
            raise InputError(f"a budget of {self.budget} calls; it must be at least 1.")
        for start in self.starts:
            if start not in STARTS:
                raise InputError(
                    f"a search cannot start from '{start}'. Fix: one of {', '.join(STARTS)}."
                )


@dataclass(frozen=True, kw_only=True)
class Sure:
    """How sure PPO's heads are after so many calls: each one's largest probability."""

    calls: int
    chunk: int
    confidence: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search has come to. `nodes`: on how many of a Ray cluster strategies were proposed."""

    archive: Archive
    sure: tuple[Sure, ...] = ()
    nodes: int = 1


@dataclass
class _Told:
    """What whoever watches is told: the archive, and how sure the heads are."""

    tell: Callable[[Archive, Sure | None], None]
    sure: list[Sure] = field(default_factory=list)
    nodes: set[str] = field(default_factory=set)

    def __call__(self, archive: Archive) -> None:
        self.tell(archive, self.sure[-1] if self.sure else None)


def method_names() -> tuple[str, ...]:
    """All methods there are."""
    return (PPO, *METHODS)


def run(
    order: Order,
    evaluator: Evaluator,
    *,
    checkpoint: Checkpoint | None = None,
    tell: Callable[[Archive, Sure | None], None] = lambda *_: None,
) -> Outcome:
    """Search until the budget is spent or the method has its answer.

    `tell` hears of every batch of calls. Raises UnavailableError where PPO has no Ray or torch.
    """
    saved = None if checkpoint is None else checkpoint.load(evaluator.space)
    told = _Told(tell)
    if order.method == PPO:
        return _learnt(order, evaluator, told, checkpoint=checkpoint, saved=saved)
    step, last = max(1, order.budget // _SAVES), 0

    def watch(archive: Archive) -> None:
        nonlocal last
        told(archive)
        if checkpoint is not None and archive.calls >= last + step:
            last = archive.calls
            checkpoint.save(archive)

    known = None if saved is None else saved.memory
    archive = Archive(evaluator, budget=order.budget, known=known, watch=watch)
    if _started(archive, order):
        run_method(order.method, archive, order.seed)
    return Outcome(archive=archive)


def _learnt(
    order: Order,
    evaluator: Evaluator,
    told: _Told,
    *,
    checkpoint: Checkpoint | None,
    saved: Saved | None,
) -> Outcome:
    try:
        from rl_search.train import PpoOptions, Round, search
    except ImportError as error:
        raise UnavailableError(
            f"the method `ppo` needs RLlib and torch ({error}). Fix: install shardwise[rl], or use "
            f"another method ({', '.join(METHODS)})."
        ) from error
    archive = Archive(evaluator, budget=order.budget, watch=told)
    after: Round | None = None
    if saved is not None:
        archive.charge(saved.charged)
        archive.budget = order.budget + archive.charged
        archive.add(saved.memory.actions, saved.memory.judged, asked=saved.asked)
        after = Round.loaded(saved.round) if saved.round else None
    elif not _started(archive, order):
        return Outcome(archive=archive)

    def keep(round_: Round) -> None:
        told.sure.append(
            Sure(calls=archive.calls, chunk=round_.chunk, confidence=round_.confidence)
        )
        told.nodes.update(round_.nodes)
        told(archive)
        if checkpoint is not None:
            checkpoint.save(archive, round_=round_.saved())

    search(archive, order.seed, order.ppo or PpoOptions(), after=after, saved=keep)
    return Outcome(archive=archive, sure=tuple(told.sure), nodes=max(1, len(told.nodes)))


def _started(archive: Archive, order: Order) -> bool:
    """Judge what the search is to start from; whether any calls are left after it."""
    try:
        for start in order.starts:
            run_method(start, archive, order.seed)
    except BudgetSpent:
        return False
    # Looking at everything needs no budget: what was to be spent is still there.
    archive.budget = order.budget + archive.charged
    return archive.left > 0
