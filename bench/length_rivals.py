"""Simple length predictors to compare `cluster.lengths` with, and requests of our own making."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log, log2

import numpy as np

from cluster.lengths.features import LengthFeatures, LengthPredictor
from cluster.lengths.predictors import PREDICTORS

ROOM = 131_072


class Constant:
    """Always the same, whatever comes."""

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens

    def predict(self, asked: LengthFeatures) -> float:
        """See `LengthPredictor`."""
        del asked
        return self._tokens

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        del asked, output_tokens


class Last(Constant):
    """As long as the one before."""

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        del asked
        self._tokens = output_tokens


class RunningMean(Constant):
    """The mean of all so far."""

    def __init__(self, tokens: float) -> None:
        super().__init__(tokens)
        self._seen = 0

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        del asked
        self._seen += 1
        self._tokens += (output_tokens - self._tokens) / self._seen


class DecayedMean(Constant):
    """An exponentially weighted mean; one that is 100 answers old counts half."""

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        del asked
        self._tokens += (1.0 - 0.5**0.01) * (output_tokens - self._tokens)


class OctaveMeans:
    """The mean of all so far whose prompts have as many binary digits."""

    def __init__(self, tokens: float) -> None:
        self._tokens = tokens
        self._means: dict[int, RunningMean] = {}

    def predict(self, asked: LengthFeatures) -> float:
        """See `LengthPredictor`."""
        mean = self._means.get(asked.prompt_tokens.bit_length())
        return self._tokens if mean is None else mean.predict(asked)

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        octave = asked.prompt_tokens.bit_length()
        self._means.setdefault(octave, RunningMean(0.0)).learn(asked, output_tokens)


class LogRegression:
    """Online regression of log output on 1, x, x^2, x^3 with x = log2(prompt) / 16, and the source.

    Recursive least squares that forget half in 100 answers would blow up on rare sources, so
    gradient steps (normalised LMS, rate 0.1). The mean of a log is not the log of a mean: a decayed
    ratio of actual to predicted puts the level right.
    """

    def __init__(self, tokens: float) -> None:
        self._weights: dict[object, float] = {0: log(max(tokens, 1.0))}
        self._level = 1.0

    def predict(self, asked: LengthFeatures) -> float:
        """See `LengthPredictor`."""
        return self._level * exp(min(self._log(asked), 20.0))

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        guess = self._log(asked)
        values = _terms(asked)
        step = 0.1 * (log(max(output_tokens, 1.0)) - guess) / sum(v * v for v in values.values())
        for name, value in values.items():
            self._weights[name] = self._weights.get(name, 0.0) + step * value
        ratio = min(output_tokens / exp(min(guess, 20.0)), 20.0)
        self._level += 0.01 * (ratio - self._level)

    def _log(self, asked: LengthFeatures) -> float:
        return sum(self._weights.get(n, 0.0) * v for n, v in _terms(asked).items())


def _terms(asked: LengthFeatures) -> dict[object, float]:
    x = log2(max(asked.prompt_tokens, 1)) / 16.0
    return {0: 1.0, 1: x, 2: x * x, 3: x**3, (asked.source, asked.limit): 1.0}


RIVALS: Mapping[str, Callable[[float], LengthPredictor]] = {
    "last value": Last,
    "running mean": RunningMean,
    "decayed mean": DecayedMean,
    "mean by prompt octave": OctaveMeans,
    "log regression": LogRegression,
    **PREDICTORS,
}


@dataclass(frozen=True, kw_only=True)
class Known:
    """A request with its outcome: arrival in seconds, what a gateway knows, output tokens."""

    arrival_s: float
    asked: LengthFeatures
    output_tokens: int


def made_up(count: int, *, rate: float = 10.0, seed: int = 1) -> list[Known]:
    """Requests of eight applications, each with its system prompt, its limit and its lengths.

    Two answer in proportion to the prompt; from the middle on, one's answers are twice as long.
    """
    draw = np.random.default_rng(seed)
    shares = (0.3, 0.2, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05)
    usual = (30, 120, 400, 15, 250, 800, 60, 200)
    limits = (None, 256, None, 64, None, None, 512, 1024)
    made, now_s = [], 0.0
    for index in range(count):
        now_s += float(draw.exponential(1.0 / rate))
        app = int(draw.choice(len(shares), p=shares))
        prompt = int(200 + 50 * app + draw.lognormal(5.0, 1.0))
        length = usual[app] * float(draw.lognormal(0.0, 0.6))
        length *= prompt / 400.0 if app in (1, 4) else 1.0
        length *= 2.0 if app == 2 and index > count / 2 else 1.0
        limit = limits[app]
        output = max(1, min(round(length), ROOM if limit is None else limit))
        asked = LengthFeatures(
            prompt_tokens=prompt,
            limit=limit,
            room=ROOM,
            source="chat",
            openings=(1000 + app,),
        )
        made.append(Known(arrival_s=now_s, asked=asked, output_tokens=output))
    return made
