"""What does the article's formula take an answer's length to be? Its limit, or what is usual.

The load of a request is (prompt + max_output / 2) * 1.2 (`cluster.routing.predicted_tokens`); of a
request that sets no limit, `max_output` is the plan's usual output. Nothing is learned.
"""

from __future__ import annotations

from cluster.lengths.features import LengthFeatures


class Formula:
    """`usual`: output tokens of a request that sets no limit."""

    def __init__(self, usual: float) -> None:
        self._usual = usual

    def predict(self, asked: LengthFeatures) -> float:
        """See `LengthPredictor`."""
        return min(self._usual, asked.room) if asked.limit is None else asked.most

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """See `LengthPredictor`."""
