"""Where may a text be cut? Between paragraphs or lines, else sentences, else words.

Segments depend on the text alone, so the same text sent again has the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from serving.long_input.words import BROKEN, Words

Span = tuple[int, int]  # tokens from, to

# Most tokens of a question that follows a text in the same message, and least terms in it.
QUESTION_TOKENS = 96
_QUESTION_TERMS = 4
_ENDS = (".", "!", "?", "…", "。", "\uff01", "\uff1f", "।", "؟")
_BLANK_LINE, _LINE, _SENTENCE, _WORD, _ANYWHERE, _WITHIN = 5, 4, 3, 2, 1, 0


def split(tokens: Sequence[int], *, size: int, words: Words) -> list[Span]:
    """Segments of at most `size` tokens, at least half as long where the text goes on."""
    spans: list[Span] = []
    start = 0
    while start < len(tokens):
        stop = min(start + size, len(tokens))
        if stop < len(tokens):
            earliest = start + max(1, size // 2)
            # Of the best places the last one.
            stop = max(range(stop, earliest - 1, -1), key=lambda at: _fit(tokens, at, words))
        spans.append((start, stop))
        start = stop
    return spans


def last_words(tokens: Sequence[int], *, most: int, words: Words) -> Span:
    """The question at the end of a long text: its last paragraph, else its last lines.

    A paragraph too short to be one ("Answer:") is taken with the one before it.
    """
    end = len(tokens)
    begin = max(0, end - min(most, QUESTION_TOKENS))
    places = range(end - 1, begin, -1)
    for at in places:
        if _fit(tokens, at, words) == _BLANK_LINE:
            terms = words.terms(tokens[at:])
            if len(terms) >= _QUESTION_TERMS:
                return (at, end)
    for wanted in (_LINE, _SENTENCE):
        for at in reversed(places):
            if _fit(tokens, at, words) >= wanted and words.terms(tokens[at:]):
                return (at, end)
    return (begin, end)


def _fit(tokens: Sequence[int], at: int, words: Words) -> int:
    """How good a place to cut there is before a token."""
    before, after = words.text(tokens[at - 1]), words.text(tokens[at])
    if BROKEN in before:
        before = words.ending(tokens[max(0, at - 4) : at])
        if before.endswith(BROKEN):
            return _WITHIN
    if "\n" in before:
        if "\n" in after:
            return _WITHIN
        earlier = words.text(tokens[at - 2]) if at > 1 else ""
        return _BLANK_LINE if before.count("\n") > 1 or "\n" in earlier else _LINE
    if before.rstrip().endswith(_ENDS):
        return _SENTENCE
    if after[:1].isspace() and "\n" not in after:
        return _WORD
    return _ANYWHERE
