"""How long are prompts and outputs of a trace made up?

Lengths are whole tokens from 1 to 10^9. A lognormal law of mean m and variation cv has
sigma^2 = ln(1 + cv^2) and mu = ln m - sigma^2 / 2; the exponential law of whole tokens is the
geometric one, whose mean is m exactly. ServeGen (arXiv:2505.09999) found prompts of production
traffic near lognormal with a Pareto tail and outputs near exponential.

To add a law: write a frozen dataclass with `draw`, and a line in `LENGTHS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cluster.errors import InputError
from cluster.traces.request import MOST_TOKENS, TraceRequest

Tokens = NDArray[np.int64]


class LengthLaw(Protocol):
    """A law of lengths in tokens."""

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """`count` lengths of at least 1."""


@dataclass(frozen=True)
class Fixed:
    """Every length is the same."""

    tokens: float

    def __post_init__(self) -> None:
        _check("length", self.tokens)

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:  # noqa: ARG002  a law's shape
        """`count` times the length."""
        return np.full(count, round(self.tokens), dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """All whole lengths from `low` to `high` are as likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check("low length", self.low)
        _check("high length", self.high)
        if self.low > self.high:
            raise InputError(f"uniform lengths from {self.low:g} to {self.high:g}: swap the two.")

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """`count` lengths."""
        return rng.integers(round(self.low), round(self.high), count, endpoint=True)


@dataclass(frozen=True)
class Lognormal:
    """Logarithms are normal; `cv` is standard deviation over mean."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check("mean length", self.mean)
        if not 0.0 <= self.cv <= 1e6:
            raise InputError(f"a lognormal law's cv is {self.cv}; it must be within 0 to 10^6.")

    @classmethod
    def of_sigma(cls, mean: float, sigma: float) -> Lognormal:
        """The law whose logarithms have the standard deviation `sigma`."""
        return cls(mean, math.sqrt(math.expm1(sigma**2)))

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """`count` lengths."""
        variance = math.log1p(self.cv**2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2.0, math.sqrt(variance), count)
        return np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.int64)


@dataclass(frozen=True)
class Exponential:
    """Each further token is as likely as the one before."""

    mean: float

    def __post_init__(self) -> None:
        _check("mean length", self.mean)

    def draw(self, rng: np.random.Generator, count: int) -> Tokens:
        """`count` lengths."""
        return np.minimum(rng.geometric(1.0 / self.mean, count), MOST_TOKENS)


class RequestLengths(Protocol):
    """A law of pairs (prompt, output)."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        """`count` prompt lengths, and the output length of each."""


@dataclass(frozen=True)
class Independent:
    """Prompts say nothing of outputs."""

    prompt: LengthLaw
    output: LengthLaw

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        """`count` pairs."""
        return self.prompt.draw(rng, count), self.output.draw(rng, count)


@dataclass(frozen=True, eq=False)
class Empirical:
    """Pairs seen in a trace, each as likely: keeps what binds outputs to prompts."""

    prompts: Tokens
    outputs: Tokens

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> Empirical:
        """The pairs of a trace. Raises InputError where it has none."""
        pairs = [(request.prompt_tokens, request.output_tokens) for request in requests]
        if not pairs:
            raise InputError("a trace without requests has no lengths to draw from.")
        prompts, outputs = np.array(pairs, dtype=np.int64).T
        return cls(prompts, outputs)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Tokens, Tokens]:
        """`count` pairs, with replacement."""
        chosen = rng.integers(0, len(self.prompts), count)
        return self.prompts[chosen], self.outputs[chosen]


# name -> (maker, names of its numbers)
LENGTHS: Mapping[str, tuple[Callable[..., LengthLaw], tuple[str, ...]]] = {
    "fixed": (Fixed, ("tokens",)),
    "uniform": (Uniform, ("low", "high")),
    "lognormal": (Lognormal, ("mean", "cv")),
    "exponential": (Exponential, ("mean",)),
}


def _check(name: str, tokens: float) -> None:
    if not 1.0 <= tokens <= MOST_TOKENS:
        raise InputError(f"a {name} of {tokens:g} tokens; it must be within 1 to 10^9.")
