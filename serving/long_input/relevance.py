"""How much has a segment to do with a question? BM25 over the model's tokens.

    score = Σ over the question's terms  idf · f · (k1 + 1) / (f + k1 · (1 − b + b · n / mean n))
    idf   = ln(1 + (N − df + 0.5) / (df + 0.5))

f: how often the term is in the segment, n: terms of the segment, N: segments, df: those with the
term. Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009); the
idf that is never negative is Lucene's. Why it is our own: docs/decisions/0016-bm25-over-tokens.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

K1, B = 1.5, 0.75


def scores(question: Sequence[Hashable], texts: Sequence[Sequence[Hashable]]) -> list[float]:
    """One score per text, 0 where nothing of the question is in it."""
    wanted = set(question)
    counts = [Counter(term for term in text if term in wanted) for text in texts]
    lengths = [len(text) for text in texts]
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    within = Counter(term for count in counts for term in count)
    idf = {
        term: math.log(1 + (len(texts) - found + 0.5) / (found + 0.5))
        for term, found in within.items()
    }
    return [
        math.fsum(
            idf[term] * times * (K1 + 1) / (times + K1 * (1 - B + B * length / mean))
            for term, times in count.items()
        )
        for count, length in zip(counts, lengths, strict=True)
    ]
