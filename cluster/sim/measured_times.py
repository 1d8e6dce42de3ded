"""How long does a step take on the engine that was measured? `StepTimes` from a live file.

The formula is `cluster.calibration.live_fit`'s:

    decode = D(n) + a c
    mixed  = max(decode, P(n + sum p) + r (n + chunks - 1) + a c + q sum p (s + p / 2))
    lag    = into + into_token * prompt tokens + out

D and P are knots; past their ends they go on at their last slope. They are as measured, and so not
monotone to the percent: a matrix product of 2 rows may take longer than one of 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.calibration.live_file import LiveFile
from cluster.sim.curve import Curve
from cluster.sim.times import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTimes:
    """Seconds of steps: `decode` over sequences, `prompt` over the tokens of a mixed step."""

    decode: Curve
    prompt: Curve
    sequence_s: float
    context_token_s: float
    pair_s: float
    into_s: float
    into_token_s: float
    out_s: float

    @classmethod
    def of(cls, file: LiveFile) -> MeasuredTimes:
        """The times a file says."""
        fitted, front = file.fitted, file.front
        return cls(
            decode=Curve(fitted.decode.at, fitted.decode.seconds),
            prompt=Curve(fitted.prompt.at, fitted.prompt.seconds),
            sequence_s=fitted.sequence_s,
            context_token_s=fitted.context_token_s,
            pair_s=fitted.pair_s,
            into_s=front.into_s,
            into_token_s=front.into_token_s,
            out_s=front.out_s,
        )

    def decode_s(self, sequences: int, context: float, routed: int) -> float:  # noqa: ARG002
        """A step of decoding sequences alone; the engine measured had one rank."""
        return self.decode(sequences) + self.context_token_s * context

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        """A step with prompt chunks; never shorter than one without them."""
        alone = self.decode_s(sequences, context, routed)
        if not pieces:
            return alone
        tokens, pairs = sequences, 0.0
        for piece in pieces:
            tokens += piece[0]
            pairs += piece[0] * (piece[1] + 0.5 * piece[0])
        mixed = (
            self.prompt(tokens)
            + self.sequence_s * (sequences + len(pieces) - 1)
            + self.context_token_s * context
            + self.pair_s * pairs
        )
        return mixed if mixed > alone else alone

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:  # noqa: ARG002
        """The front end's share of a first token; chunks are launched within their steps."""
        return self.into_s + self.into_token_s * prompt_tokens + self.out_s
