"""What did users see, and what did it cost? Counts, histograms and a time series, bounded.

TTFT = first token - arrival, TPOT = (last - first) / (tokens - 1), E2E = last - arrival, each with
the lag outside of steps; ITL the gaps between tokens of a sequence. A request attains the SLO if
it completed and its TTFT and TPOT are within it; refused, broken and unfinished ones have missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.model.workload import Slo
from cluster.sim.histogram import Histogram, merged
from cluster.sim.job import Job

_MOST_WINDOWS = 600


@dataclass(slots=True)
class Window:
    """A piece of time: counts in it, and the greatest value of each gauge."""

    arrived: int = 0
    completed: int = 0
    attained: int = 0
    missed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)
    gauges: dict[str, float] = field(default_factory=dict)

    def merge(self, other: Window) -> None:
        """Add the next piece."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ttft.merge(other.ttft)
        self.tpot.merge(other.tpot)
        for name, value in other.gauges.items():
            self.gauges[name] = max(self.gauges.get(name, value), value)


_COUNTS = ("arrived", "completed", "attained", "missed", "prompt_tokens", "output_tokens")


class Series:
    """Windows of equal width, at most 600: as time goes on they are joined in pairs."""

    def __init__(self) -> None:
        self.width_s = 1.0
        self.windows: list[Window] = []

    def at(self, now_s: float) -> Window:
        """The window of a time."""
        index = int(now_s / self.width_s)
        while index >= _MOST_WINDOWS:
            self._halve()
            index = int(now_s / self.width_s)
        windows = self.windows
        while len(windows) <= index:
            windows.append(Window())
        return windows[index]

    def _halve(self) -> None:
        joined = self.windows[::2]
        for window, other in zip(joined, self.windows[1::2], strict=False):
            window.merge(other)
        self.windows, self.width_s = joined, 2.0 * self.width_s


@dataclass(frozen=True, slots=True)
class Finished:
    """One completed request, seconds and tokens."""

    number: int
    arrival_s: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    replica_id: str


class Record:
    """Collects while a simulation runs; `keep`: also every finished request, one by one."""

    def __init__(self, slo: Slo, *, keep: bool = False) -> None:
        self._slo = slo
        self.itl, self.e2e = Histogram(), Histogram()
        self.series = Series()
        self.arrived = self.completed = self.attained = 0
        self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        self.refused: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.requests: list[Finished] | None = [] if keep else None

    @property
    def ttft(self) -> Histogram:
        """Of all completed requests."""
        return merged(window.ttft for window in self.series.windows)

    @property
    def tpot(self) -> Histogram:
        """Of all completed requests of more than one token."""
        return merged(window.tpot for window in self.series.windows)

    def arrive(self, now_s: float) -> None:
        """A request came."""
        self.arrived += 1
        self.series.at(now_s).arrived += 1

    def refuse(self, reason: str, now_s: float) -> None:
        """A request was refused or given up, and why."""
        self.refused[reason] += 1
        self.series.at(now_s).missed += 1

    def count(self, what: str, number: int = 1) -> None:
        """Something happened to a request: retried, moved, degraded…"""
        self.events[what] += number

    def finish(self, job: Job, now_s: float, *, replica_id: str) -> None:
        """A request got its last token at `now_s` and the lag."""
        slo, limit = self._slo, job.limit
        ttft = job.first_s - job.arrival_s + job.lag_s
        e2e = now_s - job.arrival_s + job.lag_s
        self.e2e.add(e2e)
        window = self.series.at(now_s)
        window.ttft.add(ttft)
        good = slo.ttft_s is None or ttft <= slo.ttft_s
        tpot = 0.0
        if limit > 1:
            tpot = (now_s - job.first_s) / (limit - 1)
            window.tpot.add(tpot)
            good = good and (slo.tpot_s is None or tpot <= slo.tpot_s)
        self.completed += 1
        window.completed += 1
        if good:
            self.attained += 1
            window.attained += 1
        self.prompt_tokens += job.prompt
        self.output_tokens += limit
        self.cached_tokens += job.cached
        window.prompt_tokens += job.prompt
        window.output_tokens += limit
        if self.requests is not None:
            self.requests.append(
                Finished(
                    job.number,
                    job.arrival_s,
                    ttft,
                    tpot,
                    e2e,
                    job.prompt,
                    limit,
                    job.cached,
                    replica_id,
                )
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished simulation. Seconds, tokens, hours, USD.

    `duration_s`: from the first arrival to the last event. `goodput_rps`: requests/s within the
    SLO. `attainment`: their share of all that came. `device_hours`, `cost`: of all replicas, from
    when they were asked for; cost None without a price. `refused`: by reason; `events`: retries,
    moves, preemptions and so on. `replicas`: most and mean ready, by pool.
    """

    record: Record
    duration_s: float
    device_hours: float
    cost: float | None
    replicas: Mapping[str, tuple[int, float]]
    unfinished: int

    @property
    def goodput_rps(self) -> float:
        """Completed requests/s within the SLO."""
        return self.record.attained / self.duration_s if self.duration_s > 0.0 else 0.0

    @property
    def attainment(self) -> float:
        """Requests within the SLO over all that came, 1 if none came."""
        return self.record.attained / self.record.arrived if self.record.arrived else 1.0

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of completed requests per second."""
        return self.record.output_tokens / self.duration_s if self.duration_s > 0.0 else 0.0
