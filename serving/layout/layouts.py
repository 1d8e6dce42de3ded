"""What does the controller need to move a pool to another layout, and how far is a move?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autoscaler.moves import Side, Step, StepKind
from cluster.model.plan import Plan
from cluster.ray_backend.node_supply import NodeSupply
from serving.layout.generations import Generation
from serving.settings.steering_config import SteeringSection

Phase = Literal["moving", "going back", "done", "rolled back"]


class Apps(Protocol):
    """Deploys and deletes generations; called from threads (`serving.layout.pool_app.PoolApps`)."""

    def start(self, generation: Generation, *, replicas: int) -> None: ...  # noqa: D102
    def delete(self, generation: Generation) -> None: ...  # noqa: D102
    def free(self) -> dict[str, float]: ...  # noqa: D102


class Nodes(Protocol):
    """Asks for nodes; called from threads (`serving.layout.node_requests.NodeRequests`)."""

    def supply(self) -> NodeSupply: ...  # noqa: D102
    def ask(self, generation: Generation, *, replicas: int) -> str: ...  # noqa: D102
    def waiting(self) -> frozenset[str]: ...  # noqa: D102
    def withdraw(self) -> None: ...  # noqa: D102


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """`plan`: of the first generation. `link_secret`: with which replicas are asked."""

    plan: Plan
    steering: SteeringSection
    apps: Apps
    nodes: Nodes
    link_secret: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class MoveProgress:
    """How far a move has come. `old`, `new`: layouts in words. `reason`: of a way back.

    `steps`: those begun, in words, with when.
    """

    number: int
    phase: Phase
    old: str
    new: str
    doing: str
    reason: str = ""
    steps: tuple[tuple[float, str], ...] = ()
    since_s: float = field(default_factory=time.time)

    @property
    def over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.phase in ("done", "rolled back")


_WORDS = {
    StepKind.START: "start {n} replica(s) of the {side} layout",
    StepKind.AWAIT: "wait until they answer",
    StepKind.CANARY: "ask each for a first answer",
    StepKind.DRAIN: "take {n} replica(s) of the {side} layout out of the routing table",
    StepKind.STOP: "wait until what they have begun is finished and they are gone",
    StepKind.ASK: "ask Ray's autoscaler for room for {n} replica(s) of the {side} layout",
}
_SIDES = {Side.OLD: "old", Side.NEW: "new"}


def in_words(steps: Sequence[Step]) -> list[str]:
    """One line per step."""
    return [_WORDS[step.kind].format(n=step.replicas, side=_SIDES[step.side]) for step in steps]
