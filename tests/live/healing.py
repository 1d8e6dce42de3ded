"""How long does it take until a fault is noticed, and until what it took is back?

Read off the decision log, in which every tick has what was seen and what was decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoscaler.decision_log import Tick, parse
from autoscaler.reasons import Action
from tests.live.instance import until

REQUIRED_S = 30.0  # the most that healing may take, apart from loading


@dataclass(frozen=True, kw_only=True)
class Healing:
    """Seconds after a fault. `loading_s`: in its place, from Serve's first start of a replica.

    `noticed_s`: its restart was ordered, or another was begun. `back_s`: as many as before
    answer. `starts`: what Serve began; more than one, and the others failed, which is loading too.
    """

    noticed_s: float
    loading_s: float
    back_s: float
    starts: int

    @property
    def apart_s(self) -> float:
        """Until all is back, but for loading."""
        return self.back_s - self.loading_s

    def __str__(self) -> str:
        return (
            f"noticed after {self.noticed_s:.1f} s, back after {self.back_s:.1f} s, of which "
            f"{self.loading_s:.1f} s loading in {self.starts} start(s): {self.apart_s:.1f} s apart "
            "from it"
        )


def healing(log: Path, *, fault_s: float, pool: str = "main") -> Healing | None:
    """What the log says of a replica that was struck at `fault_s`; None while it is not healed."""
    noticed_s: float | None = None
    begun: dict[str, float] = {}
    before: set[str] = set()
    ordered: set[str] = set()
    for tick in _ticks(log):
        now_s = tick.snapshot.now_s
        seen = next((p for p in tick.snapshot.pools if p.pool == pool), None)
        if seen is None:
            continue
        there = {replica.replica_id for replica in seen.replicas}
        if now_s <= fault_s:
            before = there
            continue
        ordered |= {d.subject for d in tick.decisions if d.action is Action.RESTART}
        begun |= {s.replica_id: s.since_s for s in seen.starting if s.since_s > fault_s}
        if noticed_s is None and (ordered or begun or before - there):
            noticed_s = (now_s if ordered else min([now_s, *begun.values()])) - fault_s
        new = there - before
        if noticed_s is not None and new and not ordered & there and not seen.pending:
            since_s = min(begun.values(), default=now_s)
            return Healing(
                noticed_s=noticed_s,
                loading_s=now_s - since_s,
                back_s=now_s - fault_s,
                starts=len(begun),
            )
    return None


def healed(log: Path, *, fault_s: float, limit_s: float) -> Healing:
    """Wait until the log says so."""
    found: list[Healing] = []

    def told() -> bool:
        one = healing(log, fault_s=fault_s)
        found.extend([one] if one else [])
        return one is not None

    until(told, limit_s=limit_s, what="a replica in the place of the one that was struck")
    return found[0]


def history(log: Path, *, fault_s: float, pool: str = "main") -> str:
    """A pool's replicas as they came and went since then, a line for each change: why so long?"""
    lines: list[str] = []
    before = ""
    for tick in _ticks(log):
        seen = next((p for p in tick.snapshot.pools if p.pool == pool), None)
        if seen is None or tick.snapshot.now_s <= fault_s:
            continue
        told = (
            f"answer {sorted(replica.replica_id for replica in seen.replicas)}, "
            f"start {[(s.replica_id, round(s.since_s - fault_s, 1)) for s in seen.starting]}, "
            f"pending {seen.pending}, unmet {seen.unmet!r}, failed {seen.start_failure!r}"
        )
        ordered = [f"{d.action} {d.subject}: {d.reason}" for d in tick.decisions]
        if ordered or told != before:
            lines.append(f"{tick.snapshot.now_s - fault_s:6.1f} s: {told} {ordered or ''}")
        before = told
    return "\n".join(lines)


def _ticks(log: Path) -> Iterator[Tick]:
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]  # the last may be half written
    return (record for _, record in parse(whole, source=str(log)) if isinstance(record, Tick))
