"""What would the controller do under this load? Its step driven in virtual time.

Joins `controller.step` to the fluid model of `cluster.sim.fluid`: arrivals flow into the pools,
every tick the pools are observed, decisions are carried out. Hours take milliseconds, the same
scenario gives the same log, and the log is of the format the live controller writes.

Tiers act on the arriving tokens as `Effects` says: assumed shares, not measurements. As at the
live gateway, arrivals of the main pool include refused ones; moved ones arrive at the light pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaler.checks import above, fraction, require
from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Header, Record, Tick, dump
from autoscaler.params import LIGHT_POOL, MAIN_POOL, ControllerParams, Mode, PoolParams
from autoscaler.reasons import Action
from autoscaler.snapshot import (
    ClusterSnapshot,
    LoadObservation,
    PoolObservation,
    Tier,
)
from cluster.sim.fluid import FluidPool, FluidSpec, advance, set_target


@dataclass(frozen=True, kw_only=True)
class Effects:
    """What a tier does to arriving tokens, as shares.

    `short_output`: tokens left by the output cap. `moved`: traffic that goes to the light pool in
    tier 3. `shed`: traffic refused in tier 4.
    """

    short_output: float = 0.8
    moved: float = 0.5
    shed: float = 0.5

    def __post_init__(self) -> None:
        for name in ("short_output", "moved", "shed"):
            fraction(f"effects.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """`arrival_tokens_per_s`: offered predicted tokens/s at a time, before any tier acts.

    `dt_s`: step of the fluid model. `blind`: (from, to) during which no observation is made.
    `by_hand`: (time, pool, replicas) somebody else sets, in order of time. `delivered`: what a
    replica carries over what the parameters say it does.
    """

    duration_s: float
    arrival_tokens_per_s: Callable[[float], float]
    effects: Effects = field(default_factory=Effects)
    dt_s: float = 0.25
    blind: tuple[tuple[float, float], ...] = ()
    by_hand: tuple[tuple[float, str, int], ...] = ()
    delivered: float = 1.0

    def __post_init__(self) -> None:
        above("scenario.duration_s", self.duration_s, 0.0)
        above("scenario.dt_s", self.dt_s, 0.0)
        above("scenario.delivered", self.delivered, 0.0)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A tick in numbers; mappings are by pool. `offered_tokens_per_s`: before any tier acts."""

    time_s: float
    offered_tokens_per_s: float
    tier: Tier
    saturation: float | None
    desired: Mapping[str, int]
    target: Mapping[str, int]
    ready: Mapping[str, int]
    queued_tokens: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class VirtualRun:
    """The decision log and the time series of a run, and the pools as they ended."""

    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    pools: Mapping[str, FluidPool]

    def log_lines(self) -> tuple[str, ...]:
        """The decision log as the live controller would write it."""
        return tuple(dump(record) for record in self.records)


def run(params: ControllerParams, scenario: Scenario) -> VirtualRun:
    """Drive the controller through a scenario; pools start with their minimum, ready and empty.

    Raises InputError if `by_hand` names a pool that is not in `params`.
    """
    require(
        scenario.dt_s <= params.tick_s,
        field="scenario.dt_s",
        problem=f"is {scenario.dt_s}, longer than a tick ({params.tick_s} s).",
    )
    pools = {pool.pool: _new(pool, delivered=scenario.delivered) for pool in params.pools}
    by_hand = [(at_s, params.pool(name).pool, n) for at_s, name, n in scenario.by_hand]
    state = ControllerState()
    records: list[Record] = [Header(params=params)]
    samples: list[Sample] = []
    snapshot = ClusterSnapshot(now_s=0.0, pools=(), loads=())
    arrived = dict.fromkeys(pools, 0.0)
    last_tick_s, next_tick_s = 0.0, params.tick_s
    for index in range(1, round(scenario.duration_s / scenario.dt_s) + 1):
        now_s = index * scenario.dt_s
        offered = max(0.0, scenario.arrival_tokens_per_s(now_s))
        shares = _shares(state.tier.tier, pools, effects=scenario.effects)
        for name, (admitted, counted) in shares.items():
            rate = offered * admitted
            pools[name] = advance(pools[name], dt_s=scenario.dt_s, arrival_tokens_per_s=rate)
            arrived[name] += offered * counted * scenario.dt_s
        while by_hand and by_hand[0][0] <= now_s:
            _, name, replicas = by_hand.pop(0)
            pools[name] = set_target(pools[name], replicas)
        if now_s < next_tick_s:
            continue

        seen = not any(start <= now_s < end for start, end in scenario.blind)
        window_s = now_s - last_tick_s
        snapshot = _observe(
            pools, arrived, window_s, now_s=now_s, before=None if seen else snapshot
        )
        result = step(state, snapshot, params)
        state, last_tick_s, next_tick_s = result.state, now_s, result.next_tick_s
        arrived = dict.fromkeys(pools, 0.0)
        records.append(Tick(snapshot=snapshot, decisions=result.decisions, tier=result.tier))
        if params.mode is Mode.ACTIVE:
            for decision in result.decisions:
                if decision.action is Action.SCALE:
                    pools[decision.pool] = set_target(pools[decision.pool], decision.value)
        samples.append(
            Sample(
                time_s=now_s,
                offered_tokens_per_s=offered,
                tier=result.tier,
                saturation=result.saturation,
                desired=result.desired,
                target={name: pool.target for name, pool in pools.items()},
                ready={name: pool.ready for name, pool in pools.items()},
                queued_tokens={name: pool.queued_tokens for name, pool in pools.items()},
            )
        )
    return VirtualRun(records=tuple(records), samples=tuple(samples), pools=pools)


def _new(pool: PoolParams, *, delivered: float) -> FluidPool:
    spec = FluidSpec(
        capacity_tokens_per_s=delivered * pool.capacity_tokens_per_s,
        capacity_in_flight_tokens=delivered * pool.capacity_in_flight_tokens,
        cold_start_s=pool.cold_start_s,
    )
    return FluidPool(spec=spec, ready=pool.minimum)


def _shares(
    tier: Tier, pools: Mapping[str, FluidPool], *, effects: Effects
) -> dict[str, tuple[float, float]]:
    """Per pool, the shares of the offered tokens that are admitted and that are counted."""
    size = effects.short_output if tier >= Tier.SHORT_OUTPUT else 1.0
    light = pools.get(LIGHT_POOL)
    moves = tier >= Tier.LIGHT_MODEL and light is not None and light.ready > 0
    moved = effects.moved if moves else 0.0
    refused = min(effects.shed, 1.0 - moved) if tier is Tier.SHED else 0.0
    shares = {MAIN_POOL: (size * (1.0 - moved - refused), size * (1.0 - moved))}
    if light is not None:
        shares[LIGHT_POOL] = (size * moved, size * moved)
    return shares


def _observe(
    pools: Mapping[str, FluidPool],
    arrived: Mapping[str, float],
    window_s: float,
    *,
    now_s: float,
    before: ClusterSnapshot | None,
) -> ClusterSnapshot:
    if before is not None:  # blind: the old observations are seen again, at a later time
        return ClusterSnapshot(now_s=now_s, pools=before.pools, loads=before.loads)
    return ClusterSnapshot(
        now_s=now_s,
        pools=tuple(
            PoolObservation(
                pool=name,
                observed_s=now_s,
                target=pool.target,
                ready=pool.ready,
                pending=len(pool.starting),
            )
            for name, pool in pools.items()
        ),
        loads=tuple(
            _load(name, pool, arrived[name] / window_s, now_s) for name, pool in pools.items()
        ),
    )


def _load(name: str, pool: FluidPool, arrival_tokens_per_s: float, now_s: float) -> LoadObservation:
    # A fluid has one kind of token: its work is its share of what a replica delivers in a second.
    token_s = 1.0 / pool.spec.capacity_tokens_per_s
    return LoadObservation(
        pool=name,
        observed_s=now_s,
        arrival_tokens_per_s=arrival_tokens_per_s,
        in_flight_tokens=pool.in_flight_tokens,
        queued_tokens=pool.queued_tokens,
        queued_requests=len(pool.queue),
        oldest_wait_s=pool.oldest_wait_s,
        arrival_work=arrival_tokens_per_s * token_s,
        in_flight_work=pool.in_flight_tokens * token_s,
        queued_work=pool.queued_tokens * token_s,
    )
