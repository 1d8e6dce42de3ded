"""What can be set about the headroom above the forecast?"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.checks import above, at_least, require
from autoscaler.headroom import HEADROOMS, LEARNED
from autoscaler.history import MINUTE_S
from cluster.errors import UnknownNameError


@dataclass(frozen=True, kw_only=True)
class HeadroomParams:
    """Headroom of every pool, see `autoscaler.headroom`.

    `method`: a key of `HEADROOMS`. Of `learned` alone: `objective`: share of forecasts, each for a
    cold start later, that the replicas shall be enough for. `memory_s`: seconds for which their
    errors are kept.
    """

    method: str = LEARNED
    objective: float = 0.99
    memory_s: float = 21_600.0

    def __post_init__(self) -> None:
        if self.method not in HEADROOMS:
            raise UnknownNameError(kind="headroom", name=self.method, known=HEADROOMS)
        above("headroom.objective", self.objective, 0.0)
        require(
            self.objective < 1.0,
            field="headroom.objective",
            problem=f"is {self.objective}, it must be below 1: no headroom covers every burst.",
        )
        at_least("headroom.memory_s", self.memory_s, 10.0 * MINUTE_S)
