"""Which load do the forecasters of `bench.forecast` meet? Public traces in predicted tokens/s."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cluster.traces.files import open_trace

TRACES = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "traces"
REQUESTS = {
    "azure code": "AzureLLMInferenceTrace_code_2023.csv",
    "azure conversation": "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake": "mooncake_conversation_trace.jsonl",
}
WINDOWS = {"servegen m-large": "servegen_language_m-large_10min.csv"}
MADE_UP = "made-up day"
NAMES = (*REQUESTS, *WINDOWS, MADE_UP)

DAY_S = 86_400.0
WINDOW_S = 600.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Predicted tokens/s, a value per `step_s`; how finely it is played follows its length.

    `season_s`: as an operator would set it, 0 in an hour's trace.
    """

    name: str
    step_s: float
    tokens_per_s: Floats
    season_s: float = 0.0

    @property
    def duration_s(self) -> float:
        """Of the whole."""
        return self.step_s * self.tokens_per_s.size

    @property
    def tick_s(self) -> float:
        """Of the controller: coarser for days."""
        return 2.0 if self.duration_s < DAY_S / 2 else 20.0

    @property
    def busiest(self) -> float:
        """Tokens/s of the busiest minute but one in a thousand."""
        width = max(1, round(60.0 / self.step_s))
        size = self.tokens_per_s.size // width * width
        return float(np.quantile(self.tokens_per_s[:size].reshape(-1, width).mean(axis=1), 0.999))

    def at(self, time_s: float) -> float:
        """Tokens/s at a time; the last ones stay."""
        return float(self.tokens_per_s[min(int(time_s / self.step_s), self.tokens_per_s.size - 1)])


def traffics(names: Sequence[str], days: float) -> Iterator[Traffic]:
    for name in names:
        if name in REQUESTS and (TRACES / REQUESTS[name]).is_file():
            yield _requests(name, TRACES / REQUESTS[name])
        elif name in WINDOWS and (TRACES / WINDOWS[name]).is_file():
            yield _windows(name, TRACES / WINDOWS[name], days)
        elif name == MADE_UP:
            yield _made_up()
        else:
            print(f"{name}: left out, its file is not at hand")


def _requests(name: str, path: Path) -> Traffic:
    """Sums over five seconds, the window over which gateways average arrivals."""
    rows = np.array(
        [(r.arrival_s, r.prompt_tokens + r.output_tokens / 2) for r in open_trace(path)]
    )
    step_s = 5.0
    sums = np.bincount((rows[:, 0] / step_s).astype(np.int64), weights=rows[:, 1])
    return Traffic(name=name, step_s=step_s, tokens_per_s=1.2 * sums / step_s)


def _windows(name: str, path: Path, days: float) -> Traffic:
    """Rates of ten minutes, joined by lines, times noise: of arrivals with their variation."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[: round(days * DAY_S / WINDOW_S)]
    rates = np.array([float(row["total_rate_rps"]) for row in rows])
    cvs = np.minimum([float(row["rate_weighted_cv"]) for row in rows], 5.0)
    lengths = np.array(
        [float(r["mean_input_tokens"]) + float(r["mean_output_tokens"]) / 2 for r in rows]
    )
    step_s = 10.0
    times = (np.arange(len(rows)) + 0.5) * WINDOW_S
    at = (np.arange(round(len(rows) * WINDOW_S / step_s)) + 0.5) * step_s
    requests = np.interp(at, times, rates) * step_s
    shape = requests / (1.0 + np.interp(at, times, cvs) ** 2)
    noise = np.random.default_rng(0).gamma(shape) / shape
    return Traffic(
        name=name,
        step_s=step_s,
        season_s=DAY_S,
        tokens_per_s=np.interp(at, times, 1.2 * rates * lengths) * noise,
    )


def _made_up() -> Traffic:
    """Three days with their nights, noise, and a rush every morning."""
    step_s = 10.0
    at = np.arange(0.0, 3 * DAY_S, step_s)
    day = 1.2 - np.cos(2 * np.pi * at / DAY_S) + 0.6 * np.exp(-(((at % DAY_S) / 3600 - 9) ** 2))
    return Traffic(
        name=MADE_UP,
        step_s=step_s,
        season_s=DAY_S,
        tokens_per_s=1000.0 * day * np.random.default_rng(0).gamma(50.0, 1 / 50.0, at.size),
    )
