"""Which segments has a prompt, and which terms are in them? Found when asked for, and once.

A policy may be called several times for one prompt; what it looks at does not change.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from serving.long_input.segments import Span, split
from serving.long_input.words import Words


class Parts:
    """The parts of texts given in tokens. `size`: most tokens of a segment."""

    def __init__(self, texts: Sequence[Sequence[int]], *, size: int, words: Words) -> None:
        self._texts, self._size, self._words = texts, size, words
        self._spans: dict[int, list[Span]] = {}
        self._terms: dict[int, list[Hashable | None]] = {}
        self._encoded: dict[str, tuple[int, ...]] = {}

    def spans(self, at: int) -> list[Span]:
        """The segments of a text."""
        if at not in self._spans:
            self._spans[at] = split(self._texts[at], size=self._size, words=self._words)
        return self._spans[at]

    def terms(self, at: int, span: Span) -> list[Hashable]:
        """The terms of a part of a text."""
        if at not in self._terms:
            self._terms[at] = list(map(self._words.term, self._texts[at]))
        return [term for term in self._terms[at][slice(*span)] if term is not None]

    def decoded(self, at: int, span: Span) -> str:
        """A part of a text as text."""
        return self._words.decode(self._texts[at][slice(*span)])

    def encoded(self, text: str) -> tuple[int, ...]:
        """The tokens of another text."""
        if text not in self._encoded:
            self._encoded[text] = self._words.encode(text)
        return self._encoded[text]
