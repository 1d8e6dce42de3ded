"""What is known of a request before it is answered, as far as its answer's length goes?

A prompt is recognised by its *openings*: hashes of its first 64, 256 and 1,024 tokens. The first
tells applications apart (their system prompts), the last conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

OPENINGS_TOKENS = (64, 256, 1024)


class LengthFeatures(NamedTuple):
    """One answer that is to come; all counts are tokens.

    `limit`: the output limit that was set, None if none was. `room`: most output that fits the
    context. `least`: output that is generated in any case (`min_tokens`, `ignore_eos`). `source`:
    who asks and in which way. `openings`: of the prompt, shortest first, those it is long enough
    for.
    """

    prompt_tokens: int
    limit: int | None
    room: int
    least: int = 0
    source: str = ""
    openings: tuple[int, ...] = ()

    @property
    def most(self) -> int:
        """Output tokens there can be."""
        return self.room if self.limit is None else min(self.limit, self.room)


class LengthPredictor(Protocol):
    """Predicts output tokens; one per pool and gateway. Both calls take microseconds."""

    def predict(self, asked: LengthFeatures) -> float:
        """Output tokens to reckon with: at least 0, at most `asked.most`."""

    def learn(self, asked: LengthFeatures, output_tokens: float) -> None:
        """The answer has come to its end, by itself or at its limit, after so many tokens."""


def openings_of_blocks(blocks: Sequence[int], block_tokens: int) -> tuple[int, ...]:
    """The openings of a prompt whose leading blocks are known, where they end with a block."""
    if block_tokens < 1:
        return ()
    return tuple(
        blocks[size // block_tokens - 1]
        for size in OPENINGS_TOKENS
        if size % block_tokens == 0 and len(blocks) * block_tokens >= size
    )
