"""How long were the answers to requests like this one? Decayed means of ever narrower contexts.

    pool > source > limit > prompt's octave > its eighths
         > opening of 64 tokens > its octave > opening of 256 > … of 1,024 > its octave

Each context keeps the mean of the answers it has seen, where one that is `HALF_LIFE` answers old
counts half. A narrow context has seen few, so its mean is drawn towards the next wider one's, which
counts as `PRIOR` answers (empirical Bayes shrinkage, with a fixed strength):

    estimate = (n * mean + PRIOR * estimate of the wider) / (n + PRIOR)

What changes everywhere at once would reach contexts that are seldom seen too late, so the estimate
is multiplied by the *level*: what the pool's answers had over what they were estimated to have,
one that is `LEVEL_HALF_LIFE` answers old counting half. Means and not medians: what is balanced and
scaled for are sums. All constants were chosen by `bench/lengths.py`.

An answer cut at its limit would have been longer. Contexts that know the limit take it as it is:
they predict what is generated. The others only know that it is at least so long, so it teaches
them something only where that is more than they expect.

Bounded: `MOST_CONTEXTS`, those that have learned nothing for longest go first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from math import log2

from cluster.lengths.features import LengthFeatures

HALF_LIFE = 100.0  # answers
LEVEL_HALF_LIFE = 300.0  # answers
PRIOR = 1.0  # answers
MOST_CONTEXTS = 20_000  # about 5 MB
_DECAY = 0.5 ** (1.0 / HALF_LIFE)
_LEVEL_DECAY = 0.5 ** (1.0 / LEVEL_HALF_LIFE)
_LEVEL_PRIOR = 10.0  # answers as long as estimated, beside those there were
_OUTLIER = 10.0  # an answer longer than this many estimates counts as so long for the level


class _Mean:
    """A decayed mean, and how many answers it rests on."""

    __slots__ = ("answers", "tokens")

    def __init__(self, *, tokens: float = 0.0, answers: float = 0.0) -> None:
        self.answers = answers
        self.tokens = tokens

    def add(self, tokens: float) -> None:
        self.answers = self.answers * _DECAY + 1.0
        self.tokens += (tokens - self.tokens) / self.answers


class Learned:
    """`usual`: output tokens expected before anything was learned; it counts as an answer seen."""

    def __init__(self, usual: float, *, most_contexts: int = MOST_CONTEXTS) -> None:
        self._pool = _Mean(tokens=usual, answers=PRIOR)
        self._means: dict[Hashable, _Mean] = {}
        self._most = most_contexts
        self._seen = 0
        self._actual = self._estimated = 0.0

    def __len__(self) -> int:
        """Contexts that are remembered, beside the pool."""
        return len(self._means)

    def predict(self, asked: LengthFeatures) -> float:
        """See `LengthPredictor`."""
        even = _LEVEL_PRIOR * max(self._pool.tokens, 1.0)
        level = (self._actual + even) / (self._estimated + even)
        return max(0.0, min(max(self._estimate(asked) * level, asked.least), asked.most))

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
        if asked.least >= asked.most:
            return  # its length was dictated
        self._learn_level(asked, output_tokens)
        cut = output_tokens >= asked.most
        if not cut or output_tokens > self._pool.tokens:
            self._pool.add(output_tokens)
        for context, knows_limit in _contexts(asked):
            mean = self._means.pop(context, None) or _Mean()
            self._means[context] = mean  # the last to be forgotten
            if not cut or knows_limit or output_tokens > mean.tokens:
                mean.add(output_tokens)
        while len(self._means) > self._most:
            del self._means[next(iter(self._means))]

    def _learn_level(self, asked: LengthFeatures, output_tokens: float) -> None:
        self._seen += 1
        if self._seen <= _LEVEL_PRIOR:
            return  # how wrong `usual` was says nothing of what has been learned
        estimate = max(1.0, min(self._estimate(asked), asked.most))
        actual = min(output_tokens, _OUTLIER * estimate)
        self._actual = self._actual * _LEVEL_DECAY + actual
        self._estimated = self._estimated * _LEVEL_DECAY + estimate

    def _estimate(self, asked: LengthFeatures) -> float:
        estimate, means = self._pool.tokens, self._means
        for context, _ in _contexts(asked):
            mean = means.get(context)
            if mean is not None:
                n = mean.answers
                estimate = (n * mean.tokens + PRIOR * estimate) / (n + PRIOR)
        return estimate


def _contexts(asked: LengthFeatures) -> Iterator[tuple[Hashable, bool]]:
    """Those of a pool, widest first; whether each tells limits apart."""
    source = asked.source
    limit = -1 if asked.limit is None else asked.most.bit_length()
    eighth = int(8.0 * log2(max(asked.prompt_tokens, 1)))
    octave = eighth // 8
    yield (source,), False
    yield (source, limit), True
    yield (source, limit, octave), True
    yield (source, limit, octave, eighth), True
    for opening in asked.openings:
        yield (source, limit, "opens", opening), True
        yield (source, limit, "opens", opening, octave), True
