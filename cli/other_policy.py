"""Which other policy does `--policy` of `shardwise replay` name?

A forecaster, a scaling policy, or a file of steering settings, as in the `steering:` section of a
serving configuration or a whole one. Pools, their bounds and capacities stay as recorded; so does
all else if a name is given, while a file stands for all of steering, defaults included.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoscaler.forecast import methods
from autoscaler.need import SCALING_POLICIES
from autoscaler.params import ControllerParams
from autoscaler.what_if import Change
from cluster.errors import UnknownNameError
from serving.settings.config import load_steering
from serving.settings.steering_config import SteeringSection, steering_params


def change_of(policy: str) -> Change:
    """What makes the other policy's parameters of the recorded ones.

    Raises UnknownNameError with all names there are, and ConfigError for a file that is wrong.
    """
    if policy in methods():
        return lambda params: replace(params, forecast=replace(params.forecast, method=policy))
    if policy in SCALING_POLICIES:
        return lambda params: replace(params, scaling=replace(params.scaling, policy=policy))
    path = Path(policy)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        steering = load_steering(path)
        return lambda params: _steered(params, steering)
    raise UnknownNameError(
        kind="policy",
        name=policy,
        known=[*methods(), *SCALING_POLICIES],
        hint="A path of a YAML file of steering settings will do, too.",
    )


def _steered(params: ControllerParams, steering: SteeringSection) -> ControllerParams:
    pools = params.pools
    if "cold_start_s" in steering.model_fields_set:
        pools = tuple(replace(pool, cold_start_s=steering.cold_start_s) for pool in pools)
    # What was planned stays so, whoever scales.
    return replace(steering_params(pools, steering), replan=params.replan)
