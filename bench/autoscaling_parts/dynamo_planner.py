"""What would NVIDIA Dynamo's planner do? Its throughput-based scaling of an aggregated engine.

After ai-dynamo/dynamo, `components/src/dynamo/planner` (`core/throughput_scaling.py`,
`core/load/predictors.py`): every 180 s the requests of the interval, their mean prompt and their
mean output are predicted for the next one by three ARIMA models (pmdarima's `auto_arima`, fitted
once at five points, then updated; values that collapse to order (0, d, 0) are predicted as
logarithms), and

    replicas = ceil(requests per second / what one engine serves within the SLO at these lengths)

where the engine's rate is interpolated over a profile of prompt and output lengths.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from bench.autoscaling_parts.world import Sizer
from cluster.sim.driver import PoolFacts

EVERY_S = 180.0
_FIT_AT = 5
_MOST_POINTS = 480  # a day: refitting over weeks would take longer than what it steers

EngineRate = Callable[[float, float], float]  # (mean prompt, mean output) -> requests/s in the SLO


class Arima:
    """One series."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._model: Any = None
        self._pending: list[float] = []
        self._logarithms = False

    def add(self, value: float) -> None:
        """The interval's value; zeros before the first traffic do not count."""
        if self.values or value:
            self.values.append(value)
            self._pending.append(value)

    def predict(self) -> float:
        """The next interval's."""
        if len(self.values) < _FIT_AT or len(set(self.values)) == 1:
            return self.values[-1] if self.values else 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._fit()
                found = float(self._model.predict(n_periods=1)[0])
            except (ValueError, ArithmeticError):  # as theirs: what cannot be fitted is the last
                self._model = None
                return self.values[-1]
        return max(0.0, math.expm1(found) if self._logarithms else found)

    def _fit(self) -> None:
        if self._model is None or len(self._pending) > _MOST_POINTS:
            self._model = _auto(self.values[-_MOST_POINTS:])
            self._logarithms = self._model.order[0] == 0 == self._model.order[2]
            if self._logarithms:
                self._model = _auto([math.log1p(value) for value in self.values[-_MOST_POINTS:]])
        elif self._pending:
            new = [math.log1p(one) if self._logarithms else one for one in self._pending]
            self._model.update(new)
        self._pending = []


def _auto(values: list[float]) -> Any:
    import pmdarima

    return pmdarima.auto_arima(values, suppress_warnings=True, error_action="ignore")


class DynamoPlanner(Sizer):
    """`engine_rate`: the profile."""

    def __init__(self, engine_rate: EngineRate) -> None:
        self._engine_rate = engine_rate
        self._series = (Arima(), Arima(), Arima())  # requests, prompt, output
        self._sums = [0.0, 0.0, 0.0]
        self._next_s = EVERY_S

    def saw(self, requests: float, prompt_tokens: float, output_tokens: float) -> None:
        """See `Sizer`."""
        for index, value in enumerate((requests, prompt_tokens, output_tokens)):
            self._sums[index] += value

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        if now_s < self._next_s:
            return pool.target
        self._next_s = now_s + EVERY_S
        requests, prompts, outputs = self._sums
        self._sums = [0.0, 0.0, 0.0]
        of_all, prompt, output = self._series
        of_all.add(requests)
        if requests:
            prompt.add(prompts / requests)
            output.add(outputs / requests)
        rate = self._engine_rate(prompt.predict(), output.predict())
        return max(1, math.ceil(of_all.predict() / EVERY_S / rate))
