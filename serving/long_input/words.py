"""How is text turned into the served model's tokens, cut between them, and turned back?

Tokens are also the terms by which relevance is measured: the model's own vocabulary knows where the
words of every language end, Chinese and Japanese too, which no rule about spaces does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

# A character whose bytes lie in several tokens, one of which was cut away.
BROKEN = "\ufffd"


class Words:
    """A model's tokens. `encode`: those of a text, without special ones; `decode`: their text.

    May be used from several threads: what it remembers is written once per token.
    """

    def __init__(
        self, encode: Callable[[str], Sequence[int]], decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._encode, self._decode = encode, decode
        self._texts: dict[int, str] = {}
        self._terms: dict[int, Hashable | None] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        return tuple(self._encode(text)) if text else ()

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without halves of characters at its ends."""
        return self._decode(tokens).strip(BROKEN) if tokens else ""

    def ending(self, tokens: Sequence[int]) -> str:
        """The end of a text, its last character whole or BROKEN: one has at most four tokens."""
        return self._decode(tokens[-4:])

    def text(self, token: int) -> str:
        """The text of one token; nothing of one that no vocabulary has."""
        found = self._texts.get(token)
        if found is None:
            try:
                found = self._decode([token])
            except OverflowError:
                found = ""
            if found:  # callers may send any number as a token
                self._texts[token] = found
        return found

    def term(self, token: int) -> Hashable | None:
        """What the token counts as when texts are compared: its text without case and spaces.

        None for spaces and punctuation; a part of a character is itself.
        """
        if token in self._terms:
            return self._terms[token]
        text = self.text(token)
        known: Hashable | None = None
        if BROKEN in text:
            known = token
        elif any(map(str.isalnum, text)):
            known = text.strip().casefold()
        if text:
            self._terms[token] = known
        return known

    def terms(self, tokens: Sequence[int]) -> list[Hashable]:
        """The terms of a text."""
        found = (self.term(token) for token in tokens)
        return [term for term in found if term is not None]
