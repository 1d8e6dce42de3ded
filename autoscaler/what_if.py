"""What would another policy have done with what was recorded?

Its step sees the recorded snapshots, with one change: a pool of which it has asked for another
size than was recorded has that size, its replicas ready a cold start after they were asked for.
The loads are the recorded ones whatever it does: with more replicas less would have been in flight
and queued. So the first differences are right, and what follows is a tendency;
`autoscaler.closed_loop` plays both against the same arrivals.

Replica-seconds count targets, what was asked for, from one tick to the next; a longer
gap counts as `GAP_TICKS` ticks. Load over capacity is what arrived beyond what the ready
replicas carry.

Invariant: a policy that decides as recorded is found to differ nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Tick, parse
from autoscaler.params import ControllerParams, PoolParams
from autoscaler.reasons import Action
from autoscaler.snapshot import (
    ClusterSnapshot,
    Decision,
    LoadObservation,
    PoolObservation,
    Tier,
)
from cluster.errors import ConfigError, InputError
from cluster.sim.fluid import FluidPool, FluidSpec, advance, set_target

GAP_TICKS = 5.0

Change = Callable[[ControllerParams], ControllerParams]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a log: its parameters, and (line number, tick) of each tick."""

    params: ControllerParams
    ticks: tuple[tuple[int, Tick], ...]


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """A pool over a log: what was asked for, what arrived, and of it what was over capacity."""

    replica_s: float = 0.0
    changes: int = 0
    arrived_tokens: float = 0.0
    over_tokens: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """A tick at which one of the two changes something that the other does not change alike."""

    line: int
    now_s: float
    recorded: tuple[Decision, ...]
    other: tuple[Decision, ...]
    recorded_tier: Tier
    other_tier: Tier


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Both policies over a log; figures by pool."""

    ticks: int
    recorded: dict[str, PoolFigures]
    other: dict[str, PoolFigures]
    divergences: tuple[Divergence, ...]


def runs_of(lines: Iterable[str], *, source: str) -> tuple[Run, ...]:
    """The runs of a log. Raises InputError naming `source` and the line."""
    runs: list[tuple[ControllerParams, list[tuple[int, Tick]]]] = []
    for number, record in parse(lines, source=source):
        if not isinstance(record, Tick):  # parameters: of a new run, or of another layout
            runs.append((record.params, []))
        else:
            runs[-1][1].append((number, record))
    return tuple(Run(params=params, ticks=tuple(ticks)) for params, ticks in runs)


def what_if(runs: Iterable[Run], change: Change, *, source: str = "decision log") -> WhatIf:
    """Both policies over the runs; `change` makes the other's parameters of the recorded ones.

    Raises InputError naming `source` and the line for a snapshot that cannot be used.
    """
    recorded, other = _Sums(), _Sums()
    divergences: list[Divergence] = []
    ticks = 0
    for run in runs:
        recorded.begin()
        other.begin()
        divergences.extend(_play(run, change(run.params), recorded, other, source=source))
        ticks += len(run.ticks)
    return WhatIf(
        ticks=ticks,
        recorded=recorded.pools,
        other=other.pools,
        divergences=tuple(divergences),
    )


@dataclass
class _Sums:
    """Figures by pool, summed over runs."""

    pools: dict[str, PoolFigures] = field(default_factory=dict)
    _targets: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """A run begins: its first target is no change."""
        self._targets = {}

    def add(
        self, pool: PoolParams, size: PoolObservation, load: LoadObservation | None, for_s: float
    ) -> None:
        """A pool of this size and load for so long."""
        sums = self.pools.get(pool.pool, PoolFigures())
        arrived = load.arrival_tokens_per_s if load is not None else 0.0
        arrived = arrived if arrived >= 0.0 else 0.0  # NaN is unknown, not load
        over = max(0.0, arrived - size.ready * pool.capacity_tokens_per_s)
        changed = self._targets.get(pool.pool, size.target) != size.target
        self._targets[pool.pool] = size.target
        self.pools[pool.pool] = PoolFigures(
            replica_s=sums.replica_s + size.target * for_s,
            changes=sums.changes + int(changed),
            arrived_tokens=sums.arrived_tokens + arrived * for_s,
            over_tokens=sums.over_tokens + over * for_s,
        )


def _play(
    run: Run, params: ControllerParams, recorded: _Sums, other: _Sums, *, source: str
) -> Iterator[Divergence]:
    state = ControllerState()
    own: dict[str, FluidPool] = {}  # pools of which the other policy has asked for another size
    for (line, tick), for_s in zip(run.ticks, _durations(run), strict=True):
        seen = tick.snapshot
        own = _still_own(own, seen)
        theirs = replace(seen, pools=tuple(_sized(size, own.get(size.pool)) for size in seen.pools))
        try:
            result = step(state, theirs, params)
        except InputError as error:
            where = f"{source}, line {line}"
            raise ConfigError(source=where, field="snapshot", problem=str(error)) from error
        state = result.state
        loads = {load.pool: load for load in seen.loads}
        for sums, snapshot in ((recorded, seen), (other, theirs)):
            for size in snapshot.pools:
                sums.add(params.pool(size.pool), size, loads.get(size.pool), for_s)
        ours, others = _changes(tick.decisions), _changes(result.decisions)
        for size in seen.pools:
            asked = _asked(others, size.pool)
            if size.pool in own or asked != _asked(ours, size.pool):
                pool = own.get(size.pool) or _as_recorded(
                    size, params.pool(size.pool), now_s=seen.now_s
                )
                own[size.pool] = pool if asked is None else set_target(pool, asked)
        if _told(ours) != _told(others):
            yield Divergence(
                line=line,
                now_s=seen.now_s,
                recorded=ours,
                other=others,
                recorded_tier=tick.tier,
                other_tier=result.tier,
            )


def _durations(run: Run) -> list[float]:
    """How long each tick counts: until the next one."""
    times = [tick.snapshot.now_s for _, tick in run.ticks]
    tick_s = run.params.tick_s
    between = [min(b - a, GAP_TICKS * tick_s) for a, b in pairwise(times)]
    return [max(0.0, each) for each in between] + [tick_s] * bool(times)


def _still_own(own: dict[str, FluidPool], seen: ClusterSnapshot) -> dict[str, FluidPool]:
    """The pools that still differ from the recorded ones, as of now."""
    targets = {size.pool: size.target for size in seen.pools}
    return {
        name: advance(pool, dt_s=max(0.0, seen.now_s - pool.now_s), arrival_tokens_per_s=0.0)
        for name, pool in own.items()
        if targets.get(name) != pool.target
    }


def _as_recorded(size: PoolObservation, params: PoolParams, *, now_s: float) -> FluidPool:
    ready = min(size.ready, size.target)
    spec = FluidSpec(
        capacity_tokens_per_s=params.capacity_tokens_per_s,
        capacity_in_flight_tokens=params.capacity_in_flight_tokens,
        cold_start_s=params.cold_start_s,
    )
    starting = (now_s + params.cold_start_s,) * (size.target - ready)
    return FluidPool(spec=spec, now_s=now_s, ready=ready, starting=starting)


def _sized(size: PoolObservation, own: FluidPool | None) -> PoolObservation:
    if own is None:
        return size
    return replace(size, target=own.target, ready=own.ready, pending=len(own.starting))


def _changes(decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
    return tuple(d for d in decisions if d.action in (Action.SCALE, Action.TIER))


def _told(decisions: tuple[Decision, ...]) -> list[tuple[str, Action, int]]:
    return [(d.pool, d.action, d.value) for d in decisions]


def _asked(decisions: tuple[Decision, ...], pool: str) -> int | None:
    """Replicas that the decisions ask for, None if they do not."""
    values = [d.value for d in decisions if d.action is Action.SCALE and d.pool == pool]
    return values[-1] if values else None
