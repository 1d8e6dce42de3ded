"""A request inside the simulator: what it asks, how far it is, where it stands.

A job is decoded along its rank's step counter: it joined at `joined_step` with `generated` tokens
and is done at `end_step`; what it has in between is computed when somebody asks (`at_step`), so
that a step costs nothing per sequence.
"""

from __future__ import annotations

import math

from cluster.lengths.features import LengthFeatures, LengthPredictor
from cluster.priority import RANK, Priority

NEVER = math.inf


class Job:
    """One request. Tokens, and seconds of the simulation's clock.

    `limit`: output tokens it will get (a tier may cap them). `load`, `work`: predicted tokens and
    engine-seconds. `asked`: what the gateway knows of its length, and `lengths` who is told in the
    end how long it was. `generated`: output tokens it had when it last joined or left a batch.
    `target`: tokens its prefill has to reach, `position`: tokens reached. `lag_s`: seconds its
    first token reaches the caller later than the step that made it ends. `failed`: replicas that
    lost it, and when.
    """

    __slots__ = (
        "arrival_s",
        "asked",
        "attempts",
        "block_tokens",
        "blocks",
        "cached",
        "chunks",
        "end_step",
        "failed",
        "first_s",
        "generated",
        "growth_key",
        "held",
        "joined_step",
        "lag_s",
        "lengths",
        "limit",
        "load",
        "moves",
        "number",
        "place",
        "pool",
        "position",
        "preempted",
        "priority",
        "prompt",
        "queued",
        "rank",
        "ready_step",
        "replica",
        "shared",
        "steps",
        "target",
        "ticket",
        "work",
    )

    def __init__(
        self,
        *,
        number: int,
        arrival_s: float,
        prompt: int,
        limit: int,
        priority: Priority = Priority.STANDARD,
        blocks: tuple[int, ...] = (),
        block_tokens: int = 0,
    ) -> None:
        self.number = number
        self.arrival_s = arrival_s
        self.prompt = prompt
        self.limit = limit
        self.priority = priority
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.pool = ""
        self.load = self.work = 0.0
        self.asked: LengthFeatures | None = None
        self.lengths: LengthPredictor | None = None
        self.generated = 0
        self.target = prompt
        self.position = 0
        self.cached = 0
        self.chunks = 0
        self.first_s = NEVER
        self.lag_s = 0.0
        self.attempts = 0
        self.moves = 0
        self.preempted = 0
        self.failed: dict[str, float] = {}
        self.replica: object | None = None
        self.ticket: object | None = None
        self.rank: object | None = None
        self.queued = False
        self.ready_step = 0
        self.place = 0
        self.held = 0
        self.shared: tuple[int, ...] = ()
        self.growth_key = 0
        self.joined_step = 0
        self.end_step = 0
        self.steps = 0

    @property
    def class_rank(self) -> int:
        """0 for VIP, 1 for standard, 2 for batch."""
        return RANK[self.priority]

    def at_step(self, step: int) -> int:
        """Output tokens at the rank's step counter, while it is being decoded."""
        done = step - self.joined_step
        if done >= self.steps:
            return self.limit
        return self.generated + (self.limit - self.generated) * done // self.steps

    def restart(self) -> None:
        """Start over on an engine that holds nothing of it: prompt and output so far again."""
        self.target = self.prompt + self.generated
        self.position = 0
        self.cached = 0
