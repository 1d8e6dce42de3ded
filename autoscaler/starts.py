"""Do new replicas come up at all, and what if they do not?

A circuit breaker per pool (Nygard, "Release It!", 2007):

    closed ──failed_starts within window_s, or a placement nobody can meet──► open
    open   ──backoff over──► probe (one more than answers may start)
    probe  ──one answers, or nobody asks for one──► closed
    probe  ──a start fails──► open, backoff doubled

Open, the pool is asked for no more than answers, or Serve would start and fail for ever. A start
fails that ends without an answer, or soon after its first; those that had begun when another failed
count as one with it, for one accident may end many. One that neither answers nor ends within
`start_limit_s` is restarted.

Invariant: while Serve deploys the application for the first time nothing is counted; it gives up by
itself then, and says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaler.fault_params import FaultParams
from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import Decision, PoolObservation
from autoscaler.view import PoolView


@dataclass(frozen=True, kw_only=True)
class StartState:
    """What is remembered of a pool's starts.

    `starting`: ids, and since when, as last seen. `young`: those that have answered just now, and
    since when. `target`: as last seen. `spared`: how many may end without having failed, as the
    target fell `fell_s`. `failed_s`: when starts failed. `open_until_s`: None while closed; past
    it, a probe may start. `most`: what answers meanwhile; where only the room is missing
    (`roomless`), another may take the place of one that has gone. `backoff_s`: of the last opening,
    forgotten a window after `closed_s`. `why`: what is told while it is not closed. `ordered`:
    stuck starts whose end was ordered, and when.
    """

    starting: tuple[tuple[str, float], ...] = ()
    young: tuple[tuple[str, float], ...] = ()
    target: int = 0
    spared: int = 0
    fell_s: float = 0.0
    failed_s: tuple[float, ...] = ()
    open_until_s: float | None = None
    most: int = 0
    roomless: bool = False
    backoff_s: float = 0.0
    closed_s: float = 0.0
    why: str = ""
    ordered: tuple[tuple[str, float], ...] = ()

    def limit(self, now_s: float) -> int | None:
        """The most replicas that may be asked for, None without a limit of its own."""
        if self.open_until_s is None:
            return None
        return self.most if now_s < self.open_until_s else self.most + 1


def step_starts(
    state: StartState, view: PoolView, *, params: FaultParams
) -> tuple[StartState, tuple[Decision, ...]]:
    """One step of one pool."""
    size, now_s = view.size, view.now_s
    if size is None or size.deploying or size.moving:
        return state, ()
    probing = state.open_until_s is not None and now_s >= state.open_until_s
    state, failed = _seen(state, size, now_s=now_s, params=params)
    failed_s = (*state.failed_s, now_s) if failed else state.failed_s
    state = replace(state, failed_s=tuple(t for t in failed_s if now_s - t <= params.window_s))
    state, restarts = _stuck(state, view, size, params=params)
    again = failed if probing else len(state.failed_s) >= params.failed_starts
    if (probing or state.open_until_s is None) and (size.unmet or again):
        state = _opened(state, size, now_s=now_s, params=params)
        return state, (*restarts, _told(state, view, size))
    if probing and (size.ready > state.most or _unasked(state, size, now_s=now_s, params=params)):
        return replace(state, open_until_s=None, why="", failed_s=(), closed_s=now_s), restarts
    if state.roomless and not size.unmet:
        return state, restarts
    return replace(state, most=min(state.most, size.ready)), restarts


def _unasked(
    state: StartState, size: PoolObservation, *, now_s: float, params: FaultParams
) -> bool:
    """Whether a probe could have started for long, and all that is wanted answers without it."""
    assert state.open_until_s is not None
    whole = size.ready == size.target and not size.starting
    return whole and now_s - state.open_until_s >= params.retry_s


def _seen(
    state: StartState, size: PoolObservation, *, now_s: float, params: FaultParams
) -> tuple[StartState, bool]:
    """What is there now, and whether a start has failed that had begun after the last that did."""
    there = {replica.replica_id for replica in size.replicas}
    starting = tuple((replica.replica_id, replica.since_s) for replica in size.starting)
    begun = {name for name, _ in starting} | there
    young = tuple(item for item in state.young if now_s - item[1] <= params.young_s)
    gone = sorted(since_s for name, since_s in (*state.starting, *young) if name not in begun)
    # A smaller target ends some; Serve takes a moment over it.
    fell = max(0, state.target - size.target)
    spared = fell + (state.spared if now_s - state.fell_s <= params.settle_s else 0)
    failed = gone[: max(0, len(gone) - spared)]
    came = tuple((name, now_s) for name, _ in state.starting if name in there)
    last_s = state.failed_s[-1] if state.failed_s else -math.inf
    state = replace(
        state,
        starting=starting,
        young=tuple(item for item in young if item[0] in there) + came,
        target=size.target,
        spared=max(0, spared - len(gone)),
        fell_s=now_s if fell else state.fell_s,
    )
    return state, any(since_s >= last_s for since_s in failed)


def _stuck(
    state: StartState, view: PoolView, size: PoolObservation, *, params: FaultParams
) -> tuple[StartState, tuple[Decision, ...]]:
    now_s = view.now_s
    ordered = {
        name: since_s
        for name, since_s in state.ordered
        if name in dict(state.starting) and now_s - since_s < params.retry_s
    }
    decisions: list[Decision] = []
    if not size.unmet:  # what waits for a place is not stuck
        for start in sorted(size.starting, key=lambda start: (start.since_s, start.replica_id)):
            spent_s = now_s - start.since_s
            if len(ordered) >= params.max_at_once or not spent_s >= params.start_limit_s:
                break
            if start.replica_id not in ordered:
                ordered[start.replica_id] = now_s
                decisions.append(
                    Decision(
                        action=Action.RESTART,
                        pool=view.pool.pool,
                        value=1,
                        kind=Reason.START_TOO_LONG,
                        reason="restarts a replica: its start takes too long",
                        numbers=(("limit_s", params.start_limit_s), ("started_s", spent_s)),
                        subject=start.replica_id,
                    )
                )
    return replace(state, ordered=tuple(sorted(ordered.items()))), tuple(decisions)


def _opened(
    state: StartState, size: PoolObservation, *, now_s: float, params: FaultParams
) -> StartState:
    again = state.open_until_s is not None or now_s - state.closed_s <= params.window_s
    backoff_s = max(params.backoff_s, 2.0 * state.backoff_s if again else 0.0)
    backoff_s = min(params.backoff_max_s, backoff_s)
    if size.unmet:
        cause = f"no node has room for {size.unmet}"
    else:
        cause = "starts fail again and again"
        cause += f" ({size.start_failure})" if size.start_failure else ""
    return replace(
        state,
        open_until_s=now_s + backoff_s,
        most=size.ready,
        roomless=bool(size.unmet),
        backoff_s=backoff_s,
        why=f"{cause}; the next is tried after {backoff_s:g} s",
    )


def _told(state: StartState, view: PoolView, size: PoolObservation) -> Decision:
    return Decision(
        action=Action.HOLD,
        pool=view.pool.pool,
        value=size.ready,
        kind=Reason.STARTS_HELD,
        reason=f"asks for no more than answer: {state.why}",
        numbers=(
            ("backoff_s", state.backoff_s),
            ("failed_starts", float(len(state.failed_s))),
            ("ready", float(size.ready)),
            ("target", float(size.target)),
        ),
    )
