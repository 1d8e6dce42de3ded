"""What can be set about forecasts?"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.checks import above, at_least, require
from autoscaler.forecast import EWMA_OR_BURST, methods
from autoscaler.history import MINUTE_S
from cluster.errors import UnknownNameError

# Minutes kept of a pool: a few MB of state at most.
LONGEST_HISTORY_S = 28 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class ForecastParams:
    """Forecasts of every pool.

    `method`: a key of `FORECASTERS`, or `auto`. `recent_s`: seconds of points kept as observed.
    `history_s`: seconds of minutes kept, in which a season can show. `season_s`: the season's
    length, 0 if it is to be found. `refit_s`: seconds between two fits of coefficients.

    Of `auto` alone: `backtest_s`: seconds of past forecasts that are judged. `shortage_weight`:
    what a replica-second too few costs, in replica-seconds paid for. `switch_margin`: share by
    which another method must be cheaper to replace the one in use.
    """

    method: str = EWMA_OR_BURST
    recent_s: float = 1800.0
    history_s: float = 172_800.0
    season_s: float = 0.0
    refit_s: float = 300.0
    backtest_s: float = 21_600.0
    shortage_weight: float = 100.0
    switch_margin: float = 0.05

    def __post_init__(self) -> None:
        if self.method not in methods():
            raise UnknownNameError(kind="forecaster", name=self.method, known=methods())
        at_least("forecast.recent_s", self.recent_s, MINUTE_S)
        at_least("forecast.history_s", self.history_s, self.recent_s)
        _at_most("forecast.history_s", self.history_s, LONGEST_HISTORY_S)
        at_least("forecast.season_s", self.season_s, 0.0)
        if self.season_s > 0.0:
            at_least("forecast.season_s", self.season_s, 2.0 * MINUTE_S)
            _at_most("forecast.season_s", self.season_s, self.history_s)
        above("forecast.refit_s", self.refit_s, 0.0)
        at_least("forecast.backtest_s", self.backtest_s, MINUTE_S)
        at_least("forecast.shortage_weight", self.shortage_weight, 1.0)
        at_least("forecast.switch_margin", self.switch_margin, 0.0)
        require(
            self.switch_margin < 1.0,
            field="forecast.switch_margin",
            problem=f"is {self.switch_margin}, it must be below 1: no cost is lower than 0.",
        )


def _at_most(field: str, value: float, limit: float) -> None:
    require(value <= limit, field=field, problem=f"is {value:g} s, it must be at most {limit:g} s.")
