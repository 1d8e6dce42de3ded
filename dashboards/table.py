"""Which dashboards are there?"""

from __future__ import annotations

from dashboards.faults import FAULTS
from dashboards.fleet import FLEET
from dashboards.panels import Dashboard
from dashboards.reality import REALITY
from dashboards.slo import SLO
from dashboards.steering import STEERING

DASHBOARDS: tuple[Dashboard, ...] = (FLEET, SLO, REALITY, STEERING, FAULTS)
