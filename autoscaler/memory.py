"""What is done about the memory of replicas? Every pool: what leaks, and its replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.leaks import Track, note, worst_leak
from autoscaler.params import ControllerParams, Mode
from autoscaler.retire import advise, step_retirement
from autoscaler.retirement import RetireState
from autoscaler.scaling import PoolState
from autoscaler.snapshot import Decision, Tier
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class PoolMemory:
    """What is remembered of a pool: the memory of its replicas, and the one that is replaced."""

    tracks: tuple[Track, ...] = ()
    retire: RetireState


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """One step: what is remembered, what scaling has asked for by now, and the decisions."""

    pools: tuple[PoolMemory, ...]
    scaling: list[PoolState]
    decisions: tuple[Decision, ...]

    @property
    def left_out(self) -> frozenset[str]:
        """Replicas that get no new requests."""
        return frozenset(pool.retire.left_out for pool in self.pools) - {""}


def step_memory(
    pools: Sequence[PoolMemory],
    scaling: Sequence[PoolState],
    views: Sequence[PoolView],
    *,
    tier: Tier,
    params: ControllerParams,
) -> Remembered:
    """One step of every pool. `scaling` is reconciled; a pool never seen before starts blank."""
    known = {pool.retire.pool: pool for pool in pools}
    found: list[PoolMemory] = []
    asked: list[PoolState] = []
    decisions: list[Decision] = []
    for state, view in zip(scaling, views, strict=True):
        pool = known.get(state.pool, PoolMemory(retire=RetireState(pool=state.pool)))
        if view.size is not None:
            seen, now_s = view.size.replicas, view.now_s
            tracks = note(pool.tracks, seen, now_s=now_s, params=params.leaks)
            pool = replace(pool, tracks=tracks)
        leak = worst_leak(pool.tracks, now_s=view.now_s, params=params.leaks)
        told: tuple[Decision, ...] = ()
        if view.size is not None and view.size.moving:
            retire = pool.retire  # its replicas go anyway
        elif params.mode is Mode.ADVISORY:
            retire, told = advise(pool.retire, leak)
        else:
            step = step_retirement(pool.retire, state, view, leak, tier=tier, params=params.leaks)
            retire, told, state = step.state, step.decisions, step.pool  # noqa: PLW2901
        found.append(replace(pool, retire=retire))
        asked.append(state)
        decisions.extend(told)
    return Remembered(pools=tuple(found), scaling=asked, decisions=tuple(decisions))
