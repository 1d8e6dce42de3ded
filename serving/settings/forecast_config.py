"""What can an operator set about forecasts of the load?"""

from __future__ import annotations

from autoscaler.forecast_params import ForecastParams
from serving.settings.config_section import Section

_DEFAULT = ForecastParams()


class ForecastSection(Section):
    """How the load at the end of a cold start is predicted; see docs/policies.md.

    `method`: a forecaster, or `auto`. `season_s`: 0 if the season is to be found.
    """

    method: str = _DEFAULT.method
    recent_s: float = _DEFAULT.recent_s
    history_s: float = _DEFAULT.history_s
    season_s: float = _DEFAULT.season_s
    refit_s: float = _DEFAULT.refit_s
    backtest_s: float = _DEFAULT.backtest_s
    shortage_weight: float = _DEFAULT.shortage_weight
    switch_margin: float = _DEFAULT.switch_margin


def forecast_params(section: ForecastSection) -> ForecastParams:
    """The controller's parameters. Raises InputError that names the value and its limit."""
    return ForecastParams(**section.model_dump())
