import json
from dataclasses import replace

import pytest

from autoscaler.forecast_params import ForecastParams
from autoscaler.params import (
    ControllerParams,
    Mode,
    ScalingParams,
    TierParams,
)
from autoscaler.params_json import params_from_json, params_to_json
from cluster.errors import ConfigError, UnknownNameError
from tests.autoscaler.build import params, pool


def test_json_round_trip_is_exact():
    original = params(
        light=True,
        scaling=ScalingParams(down_delay_s=33.3, drain_s=0.1 + 0.2),
        tiers=TierParams(enter=(0.91, 1.0, 1.0, 2.0)),
        mode=Mode.ADVISORY,
    )
    text = json.dumps(params_to_json(original))
    assert params_from_json(json.loads(text), source="test") == original


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d.pop("tick_s"), "tick_s"),
        (lambda d: d.update(tick=2), "tick"),
        (lambda d: d["scaling"].pop("drain_s"), "scaling.drain_s"),
        (lambda d: d["scaling"].update(max_step_up=1.5), "scaling.max_step_up"),
        (lambda d: d["tiers"]["enter"].__setitem__(1, "x"), "tiers.enter.1"),
        (lambda d: d["pools"][0].update(minimum=None), "pools[0].minimum"),
        (lambda d: d["pools"].__setitem__(0, 3), "pools[0]"),
        (lambda d: d.update(mode="manual"), "mode"),
        (lambda d: d.update(tick_s=True), "tick_s"),
    ],
)
def test_bad_json_names_the_field(change, field):
    data = json.loads(json.dumps(params_to_json(params())))
    change(data)
    with pytest.raises(ConfigError) as caught:
        params_from_json(data, source="here")
    assert caught.value.field == field
    assert "here" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: pool("mian"),
        lambda: ForecastParams(method="prophet"),
        lambda: ScalingParams(policy="request_count"),
        lambda: params().pool("light"),
    ],
)
def test_unknown_names_are_refused_when_configured(make):
    with pytest.raises(UnknownNameError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: pool(minimum=3, maximum=2),
        lambda: pool(minimum=-1),
        lambda: pool(cold_start_s=float("nan")),
        lambda: replace(pool(), capacity_tokens_per_s=0.0),
        lambda: replace(pool(), capacity_in_flight_tokens=float("inf")),
        lambda: ForecastParams(recent_s=10.0),
        lambda: ForecastParams(history_s=1e8),
        lambda: ForecastParams(season_s=60.0),
        lambda: ForecastParams(season_s=200_000.0),
        lambda: ForecastParams(refit_s=0.0),
        lambda: ForecastParams(shortage_weight=0.5),
        lambda: ForecastParams(switch_margin=1.0),
        lambda: ScalingParams(target_utilisation=0.8, down_utilisation=0.8),
        lambda: ScalingParams(target_utilisation=1.2),
        lambda: ScalingParams(max_step_up=0),
        lambda: ScalingParams(down_delay_s=1.0),
        lambda: ScalingParams(to_zero_delay_s=1.0),
        lambda: TierParams(enter=(1.0, 1.1, 1.2)),
        lambda: TierParams(enter=(1.0, 0.9, 1.2, 1.3)),
        lambda: TierParams(leave=(1.0, 1.0, 1.0, 1.0)),
        lambda: TierParams(leave_s=1.0),
        lambda: TierParams(retry_after_min_s=0.0),
        lambda: ControllerParams(pools=()),
        lambda: ControllerParams(pools=(pool("light"), pool())),
        lambda: params(tick_s=0.0),
        lambda: params(stale_after_s=5.0),
        lambda: params(load_window_s=121.0),
        lambda: params(ack_timeout_s=1.0),
        lambda: params(tiers=TierParams(leave=(0.8, 0.9, 0.9, 0.9))),
    ],
)
def test_impossible_values_are_refused(make):
    with pytest.raises(ConfigError):
        make()
