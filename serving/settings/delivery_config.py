"""What can an operator set about the correction by what replicas deliver?"""

from __future__ import annotations

from pydantic import Field

from autoscaler.delivery_params import DeliveryParams
from serving.settings.config_section import Section


class DeliverySection(Section):
    """See `autoscaler.delivery_params.DeliveryParams`; `least` and `most` of 1 believe the plan."""

    least: float = Field(default=0.25, gt=0, le=1)
    most: float = Field(default=4.0, ge=1)
    half_life_s: float = Field(default=300.0, gt=0)

    def params(self) -> DeliveryParams:
        """What the controller gets."""
        return DeliveryParams(least=self.least, most=self.most, half_life_s=self.half_life_s)
