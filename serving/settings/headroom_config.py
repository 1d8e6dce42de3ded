"""What can an operator set about the headroom above the forecast?"""

from __future__ import annotations

from autoscaler.headroom_params import HeadroomParams
from serving.settings.config_section import Section

_DEFAULT = HeadroomParams()


class HeadroomSection(Section):
    """How many replicas are free beside those that the forecast keeps busy; see docs/policies.md.

    `method`: `share` or `learned`. `objective`, `memory_s`: of `learned`.
    """

    method: str = _DEFAULT.method
    objective: float = _DEFAULT.objective
    memory_s: float = _DEFAULT.memory_s

    def params(self) -> HeadroomParams:
        """What the controller gets. Raises InputError that names the value and its limit."""
        return HeadroomParams(**self.model_dump())
