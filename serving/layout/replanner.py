"""What follows when the workload has drifted? A search, a proposal, and in `act` mode the move.

One search at a time, in a process of its own; the controller's ticks go on meanwhile. A proposal is
the last thing found, and stays to be read until the next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from autoscaler.snapshot import WorkloadObservation
from cluster.errors import ShardwiseError
from cluster.model.plan import Plan
from cluster.model.workload import Workload
from rl_search.replan import Found, seen_workload
from serving.layout.succession import context
from serving.settings.replan_config import ReplanSection

Search = Callable[[Plan, Workload], Awaitable[Found]]
MoveTo = Callable[[Plan], Awaitable[object]]

logger = logging.getLogger("shardwise.controller")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What came of a drift. `reason`: of the search. `verdict`: what was found, in words."""

    time_s: float
    reason: str
    verdict: str
    found: Found | None = None

    def told(self) -> dict[str, Any]:
        """As plain data, without the plan."""
        found = self.found
        return {
            "time_s": self.time_s,
            "reason": self.reason,
            "verdict": self.verdict,
            "old": None if found is None else asdict(found.old),
            "new": None if found is None else asdict(found.new),
        }


class Replanner:
    """`move_to`: begins a move to a plan, None where plans are only told."""

    def __init__(self, section: ReplanSection, *, search: Search, move_to: MoveTo | None) -> None:
        self._section, self._search, self._move_to = section, search, move_to
        self._searching: asyncio.Task[None] | None = None
        self.proposal: Proposal | None = None

    @property
    def searching(self) -> bool:
        """Whether a search is under way."""
        return self._searching is not None and not self._searching.done()

    def begin(self, plan: Plan, seen: WorkloadObservation, *, reason: str) -> None:
        """Search for what is seen; does nothing while a search is under way."""
        if not self.searching:
            loop = asyncio.get_running_loop()
            self._searching = loop.create_task(self._look(plan, seen, reason=reason))

    async def _look(self, plan: Plan, seen: WorkloadObservation, *, reason: str) -> None:
        found: Found | None = None
        try:
            workload = workload_of(plan, seen)
            found = await self._search(plan, workload)
            verdict = verdict_of(found, min_gain=self._section.min_gain)
            if self._move_to is not None and found.worth_a_move(min_gain=self._section.min_gain):
                await self._move_to(found.plan)
                verdict = f"{verdict}; it is moved to"
        except ShardwiseError as error:
            verdict = str(error)
        except Exception as error:
            logger.exception("the search failed")
            verdict = f"the search failed: {error!r}"
        self.proposal = Proposal(time_s=time.time(), reason=reason, verdict=verdict, found=found)
        logger.info("re-plan: %s: %s", reason, verdict)


def workload_of(plan: Plan, seen: WorkloadObservation) -> Workload:
    """What was seen, to plan for."""
    return seen_workload(
        plan,
        prompt_tokens=seen.prompt_tokens,
        output_tokens=seen.output_tokens,
        requests_per_s=seen.requests_per_s,
        context=context(plan.main),
    )


def verdict_of(found: Found, *, min_gain: float) -> str:
    """Whether to move, and why, in words."""
    if found.same_layout:
        return f"{found.old.layout} is still the best layout"
    if found.old.goodput_rps == 0.0 and found.new.goodput_rps > 0.0:
        return f"{found.new.layout} meets the bounds, {found.old.layout} does not"
    beside = (
        f"{found.new.layout} has {found.gain:+.0%} goodput per device beside {found.old.layout}"
    )
    if found.worth_a_move(min_gain=min_gain):
        return beside
    return f"{beside}; a move is worth it from {min_gain:+.0%} on"
