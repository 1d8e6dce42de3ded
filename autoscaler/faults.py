"""What is wrong with single replicas, and with starts, and what is done about it?

`autoscaler.stalls` finds those that are frozen, `autoscaler.starts` those that never come up. Both
speak only while the observers can be trusted: reports of gateways and the controller's own ticks
that come late say that this machine, or the network, stands still, and not the replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoscaler.fault_params import FaultParams
from autoscaler.snapshot import Decision
from autoscaler.stalls import StallState, step_stalls
from autoscaler.starts import StartState, step_starts
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class PoolFaults:
    """What is remembered of one pool."""

    pool: str
    stalls: StallState = field(default_factory=StallState)
    starts: StartState = field(default_factory=StartState)


@dataclass(frozen=True, kw_only=True)
class FaultState:
    """What is remembered of all. `ticked_s`: the last step. `late_s`: the last that came late."""

    pools: tuple[PoolFaults, ...] = ()
    ticked_s: float | None = None
    late_s: float | None = None

    def pool(self, name: str) -> PoolFaults:
        """What is remembered of a pool; blank if it was never seen."""
        return next((item for item in self.pools if item.pool == name), PoolFaults(pool=name))


def step_faults(
    state: FaultState, views: Sequence[PoolView], *, tick_s: float, params: FaultParams
) -> tuple[FaultState, tuple[Decision, ...]]:
    """One step. `tick_s`: between two of them, as planned."""
    now_s = views[0].now_s
    late_s = state.late_s
    if state.ticked_s is not None and now_s - state.ticked_s > tick_s + params.late_s:
        late_s = now_s
    pools: list[PoolFaults] = []
    decisions: list[Decision] = []
    for view in views:
        pool = state.pool(view.pool.pool)
        disturbed = _disturbed(view, late_s, params=params)
        stalls, ended = step_stalls(pool.stalls, view, disturbed=disturbed, params=params)
        starts, told = step_starts(pool.starts, view, params=params)
        pools.append(replace(pool, stalls=stalls, starts=starts))
        decisions += [*ended, *told]
    return FaultState(pools=tuple(pools), ticked_s=now_s, late_s=late_s), tuple(decisions)


def limited(state: FaultState, view: PoolView) -> PoolView:
    """The pool as scaling may see it: with no more replicas than can be started."""
    starts = state.pool(view.pool.pool).starts
    return replace(view, limit=starts.limit(view.now_s), limit_why=starts.why)


def troubles(state: FaultState) -> Mapping[str, str]:
    """Pools that are asked for no more than answers, and why."""
    return {pool.pool: pool.starts.why for pool in state.pools if pool.starts.why}


def _disturbed(view: PoolView, late_s: float | None, *, params: FaultParams) -> str:
    if late_s is not None and view.now_s - late_s < params.settle_s:
        return "the controller itself was held up"
    if dict(view.ages).get("load_age_s", 0.0) > params.late_s:
        return "reports of gateways are late"
    return ""
