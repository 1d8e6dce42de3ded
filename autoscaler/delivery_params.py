"""What can be set about the correction by what replicas deliver?"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.checks import above, at_least, fraction, require


@dataclass(frozen=True, kw_only=True)
class DeliveryParams:
    """How replicas' speed is measured, see `autoscaler.delivery_rate`.

    `least`, `most`: bounds of measured over predicted; both 1: the prediction is believed.
    `half_life_s`: seconds of busy replicas after which a measurement counts half. `prior_s`:
    seconds of busy replicas that the prediction counts for, as if measured. `busy_share`: of the
    plan's batch that a replica must have in flight for its speed to say something.
    """

    least: float = 0.25
    most: float = 4.0
    half_life_s: float = 300.0
    prior_s: float = 60.0
    busy_share: float = 0.125

    def __post_init__(self) -> None:
        fraction("delivery.least", self.least)
        at_least("delivery.most", self.most, 1.0)
        above("delivery.half_life_s", self.half_life_s, 0.0)
        above("delivery.prior_s", self.prior_s, 0.0)
        require(
            self.prior_s < self.half_life_s,
            field="delivery.prior_s",
            problem=f"is {self.prior_s}, not below half_life_s {self.half_life_s}: the prediction "
            "would always outweigh what is measured.",
        )
        fraction("delivery.busy_share", self.busy_share)
