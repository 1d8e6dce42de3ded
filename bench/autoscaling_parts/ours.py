"""The live controller as a rival: its defaults, told what one replica carries."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.params import ControllerParams, PoolParams
from autoscaler.simulated import Steered
from bench.autoscaling_parts.world import POOL, Bench
from serving.settings.steering_config import SteeringSection, steering_params

CONTEXT = 1 << 40  # tiers cap no output here: it would be another comparison


def params_of(world: Bench, *, held_tokens: float, tick_s: float = 1.0) -> ControllerParams:
    """The defaults of `steering`. `held_tokens`: predicted tokens a replica holds at most."""
    return steering_params(
        (
            PoolParams(
                pool=POOL,
                minimum=1,
                maximum=world.most,
                capacity_tokens_per_s=world.sustained.tokens_per_s,
                capacity_in_flight_tokens=held_tokens,
                cold_start_s=world.start_s,
            ),
        ),
        SteeringSection(cold_start_s=world.start_s, tick_s=tick_s),
    )


def ours(params: ControllerParams, *, forecaster: str | None = None) -> Steered:
    """The controller, with another forecaster if one is named."""
    if forecaster is not None:
        params = replace(params, forecast=replace(params.forecast, method=forecaster))
    return Steered(params, contexts={POOL: CONTEXT}, output_cap=CONTEXT)
