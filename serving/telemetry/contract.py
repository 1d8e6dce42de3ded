"""Which metrics are there? All of them, in one table: what is not here is not exposed."""

from __future__ import annotations

from serving.telemetry.account_rows import ACCOUNT_METRICS
from serving.telemetry.engine_rows import ENGINE_METRICS
from serving.telemetry.gateway_rows import GATEWAY_METRICS
from serving.telemetry.metric import Metric, by_name

CONTRACT = by_name(GATEWAY_METRICS + ACCOUNT_METRICS + ENGINE_METRICS)


def scraped() -> tuple[Metric, ...]:
    """Those that a gateway's `/metrics` has."""
    return GATEWAY_METRICS + ACCOUNT_METRICS
