"""What does a policy meet, and what is counted of it? The terms that both worlds share.

A *rival* is a driver of one pool (`cluster.sim.driver.Driver`) that may also be told what arrived.
A *world* plays a trace against it: `request_world` request by request, `fluid_world` second by
second for traces of weeks. Both start every rival with the same replicas and count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.sim.driver import Admission, Driver, Orders, PoolFacts
from cluster.traces.request import TraceRequest

POOL = "main"
HOUR_S = 3600.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Sustained:
    """What one replica carries within the SLO: requests/s, predicted tokens/s and in flight."""

    requests_per_s: float
    tokens_per_s: float
    in_flight_tokens: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rival's run. `attainment`: requests within the SLO over all that came.

    `gpu_hours`: of all replicas, from when they were asked for. `targets`: (time, replicas asked
    for), the first at 0 s.
    """

    attainment: float
    gpu_hours: float
    duration_s: float
    targets: tuple[tuple[float, int], ...] = field(repr=False)

    @property
    def changes_per_hour(self) -> float:
        """How often the number asked for changed."""
        return (len(self.targets) - 1) / (self.duration_s / HOUR_S)


class Bench(Protocol):
    """A world. `start_s`: of a replica; `window_s`: pieces the clairvoyant optimum is made of.

    `most`: replicas there may be; `initial`: at first.
    """

    @property
    def start_s(self) -> float: ...  # noqa: D102

    @property
    def window_s(self) -> float: ...  # noqa: D102

    @property
    def sustained(self) -> Sustained: ...  # noqa: D102

    @property
    def most(self) -> int: ...  # noqa: D102

    @property
    def initial(self) -> int: ...  # noqa: D102

    def run(self, driver: Driver) -> Run:
        """The whole trace against a rival; each rival is used once."""

    def arrived(self) -> Floats:
        """Requests (or tokens) that came, by window."""

    def missed(self, replicas: int, windows: Sequence[int]) -> Floats:
        """Of those, how many miss the SLO in each of `windows` with constant `replicas`."""


class Sizer:
    """A rival that only says how many replicas there shall be; everything is admitted."""

    tick_s = 1.0

    def admit(self, request: TraceRequest) -> Admission:
        """See `Driver`."""
        self.saw(1.0, float(request.prompt_tokens), float(request.output_tokens))
        return Admission(POOL, request.output_tokens)

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        """See `Driver`."""
        return Orders({POOL: self.replicas(facts[0], now_s)})

    def gauges(self) -> Mapping[str, float]:
        """See `Driver`."""
        return {}

    def saw(self, requests: float, prompt_tokens: float, output_tokens: float) -> None:
        """So much has arrived since the last call, tokens in all."""

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """How many there shall be from now on."""
        raise NotImplementedError


class Constant(Sizer):
    """Always the same."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def replicas(self, pool: PoolFacts, now_s: float) -> int:
        """See `Sizer`."""
        del pool, now_s
        return self._replicas


class Watched:
    """A driver whose changes are written down, and whose answers keep to [1, most]."""

    def __init__(self, driver: Driver, *, initial: int, most: int) -> None:
        self._driver = driver
        self._most = most
        self.targets = [(0.0, initial)]

    @property
    def tick_s(self) -> float:
        """See `Driver`."""
        return self._driver.tick_s

    def admit(self, request: TraceRequest) -> Admission:
        """See `Driver`."""
        return self._driver.admit(request)

    def tick(self, facts: Sequence[PoolFacts], now_s: float) -> Orders:
        """See `Driver`."""
        orders = self._driver.tick(facts, now_s)
        asked = orders.sizes.get(POOL)
        if asked is None:
            return Orders({}, orders.restarts)
        replicas = min(max(asked, 1), self._most)
        if replicas == facts[0].target:
            return Orders({}, orders.restarts)
        self.targets.append((now_s, replicas))
        return Orders({POOL: replicas}, orders.restarts)

    def gauges(self) -> Mapping[str, float]:
        """See `Driver`."""
        return self._driver.gauges()
