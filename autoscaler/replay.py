"""Does the controller still decide what it decided then?

The recorded snapshots go through `controller.step` again, with the recorded parameters and a
blank state at each header; decisions and tier are compared tick by tick. After a difference the
replay goes on with its own state, so the first difference is the one to look at.

Invariant: a log written by this release replays without a difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.controller import ControllerState, step
from autoscaler.decision_log import Change, Header, Tick, parse
from autoscaler.params import ControllerParams
from autoscaler.snapshot import Decision, Tier
from cluster.errors import ConfigError, InputError


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A tick whose replay decides otherwise. `line` counts from 1, `now_s` is the tick's clock."""

    line: int
    now_s: float
    recorded: tuple[Decision, ...]
    replayed: tuple[Decision, ...]
    recorded_tier: Tier
    replayed_tier: Tier


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Counts over the log (`decisions`: recorded ones), and every tick that differs."""

    runs: int
    ticks: int
    decisions: int
    differences: tuple[Difference, ...]

    @property
    def identical(self) -> bool:
        """Whether every tick was decided as recorded."""
        return not self.differences


def replay(lines: Iterable[str], *, source: str = "decision log") -> ReplayResult:
    """Replay a log's lines. Raises InputError naming `source` and the line."""
    state = ControllerState()
    params: ControllerParams | None = None
    runs = ticks = decisions = 0
    differences: list[Difference] = []
    for number, record in parse(lines, source=source):
        if isinstance(record, Header):
            state, params = ControllerState(), record.params
            runs += 1
            continue
        if isinstance(record, Change):
            params = record.params
            continue
        assert params is not None  # `parse` yields a header first
        ticks += 1
        decisions += len(record.decisions)
        where = f"{source}, line {number}"
        state, difference = _again(state, record, params, number=number, where=where)
        if difference is not None:
            differences.append(difference)
    return ReplayResult(runs=runs, ticks=ticks, decisions=decisions, differences=tuple(differences))


def _again(
    state: ControllerState, tick: Tick, params: ControllerParams, *, number: int, where: str
) -> tuple[ControllerState, Difference | None]:
    try:
        result = step(state, tick.snapshot, params)
    except InputError as error:
        raise ConfigError(source=where, field="snapshot", problem=str(error)) from error
    if result.decisions == tick.decisions and result.tier == tick.tier:
        return result.state, None
    return result.state, Difference(
        line=number,
        now_s=tick.snapshot.now_s,
        recorded=tick.decisions,
        replayed=result.decisions,
        recorded_tier=tick.tier,
        replayed_tier=result.tier,
    )
