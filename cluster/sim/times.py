"""How long does a step take? What the simulator asks of whoever prices engine steps.

Two answer: the cost model (`modelled_times`) and what was measured of a live engine
(`measured_times`). The simulator calls these per event, so answers are plain floats; whoever
answers prepares tables beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Piece(NamedTuple):
    """A chunk of one prompt in a step: `tokens` of it, after `start` that are known already.

    `prompt`: tokens of the whole prompt.
    """

    tokens: int
    start: int
    prompt: int


class StepTimes(Protocol):
    """Seconds of one rank's steps, rising with every argument but where an engine's own do not.

    `sequences` decode, holding `context` tokens together; `routed` tokens are sent through the
    experts by all ranks of the replica in this step (the rank's own where it has only one).
    """

    def decode_s(self, sequences: int, context: float, routed: int) -> float:
        """A step of decoding sequences alone."""

    def mixed_s(
        self, sequences: int, context: float, pieces: Sequence[Piece], routed: int
    ) -> float:
        """A step with prompt chunks; `sequences` decode in it (none where prompts run apart)."""

    def lag_s(self, prompt_tokens: int, chunks: int) -> float:
        """What a first token waits for outside of steps: parsing, tokens to text, launching."""
