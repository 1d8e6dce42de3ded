"""How does a body's prompt become pieces, and a body again of what stayed of them?

A message of which all stays is left as the caller sent it; of a cut one only the text changes.
Everything else of the body (tools, sampling, format) is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from serving.long_input.memory import as_text
from serving.long_input.prompt import MARKER, Piece, Selection
from serving.long_input.segments import Span
from serving.long_input.words import Words
from serving.requests import Body, ChatBody, ChatMessage, CompletionBody, TextPart


class Draft(Protocol):
    """A body whose prompt may be cut."""

    @property
    def original(self) -> Body:
        """The body as it came."""
        ...

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its prompt."""
        ...

    def body(self, selection: Selection) -> Body:
        """The body with what stayed of its prompt."""
        ...


@dataclass(frozen=True)
class ChatDraft:
    """The messages of a chat."""

    original: ChatBody
    words: Words = field(repr=False)
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, body: ChatBody, words: Words) -> ChatDraft:
        """With the tokens of each message's text, and of what cannot be cut beside it."""
        pieces = tuple(
            Piece(
                role=message.role,
                tokens=words.encode(_text(message)),
                fixed=len(words.encode(_beside(message))),
            )
            for message in body.messages
        )
        return cls(body, words, pieces)

    def body(self, selection: Selection) -> ChatBody:
        """The messages that stay, the recalled segments in front of the last user's text."""
        kept = selection.kept
        messages = {at: self._message(at, kept[at]) for at in sorted(kept)}
        if selection.recalled:
            asks = max(at for at in messages if self.pieces[at].role == "user")
            messages[asks] = _fronted(messages[asks], as_text(selection.recalled))
        return self.original.model_copy(update={"messages": list(messages.values())})

    def _message(self, at: int, spans: Sequence[Span]) -> ChatMessage:
        message, piece = self.original.messages[at], self.pieces[at]
        if tuple(spans) == piece.whole:
            return message
        return message.model_copy(update={"content": _cut_text(piece, spans, self.words)})


@dataclass(frozen=True)
class TextDraft:
    """One prompt of a completion, as text."""

    original: CompletionBody
    words: Words = field(repr=False)
    text: str
    piece: Piece

    @classmethod
    def of(cls, body: CompletionBody, text: str, words: Words) -> TextDraft:
        """`text`: one of the body's prompts."""
        return cls(body, words, text, Piece(role="user", tokens=words.encode(text)))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The prompt as what a user says."""
        return (self.piece,)

    def body(self, selection: Selection) -> CompletionBody:
        """The body with this prompt alone."""
        spans = selection.kept[0]
        whole = spans == self.piece.whole
        text = self.text if whole else _cut_text(self.piece, spans, self.words)
        return self.original.model_copy(update={"prompt": as_text(selection.recalled) + text})


@dataclass(frozen=True)
class TokensDraft:
    """One prompt of a completion, as token ids; nothing of it is encoded anew."""

    original: CompletionBody
    words: Words = field(repr=False)
    piece: Piece

    @classmethod
    def of(cls, body: CompletionBody, tokens: Sequence[int], words: Words) -> TokensDraft:
        """`tokens`: one of the body's prompts."""
        return cls(body, words, Piece(role="user", tokens=tuple(tokens)))

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The prompt as what a user says."""
        return (self.piece,)

    def body(self, selection: Selection) -> CompletionBody:
        """The body with this prompt alone."""
        tokens = list(self.words.encode(as_text(selection.recalled)))
        for span in _with_gaps(self.piece, selection.kept[0]):
            tokens += self.words.encode(MARKER) if span is None else self.piece.tokens[slice(*span)]
        return self.original.model_copy(update={"prompt": tokens})


def _with_gaps(piece: Piece, spans: Sequence[Span]) -> Iterator[Span | None]:
    """The spans, and None wherever something between or beside them is missing."""
    if spans[0][0] > 0:
        yield None
    for nth, span in enumerate(spans):
        if nth:
            yield None
        yield span
    if spans[-1][1] < len(piece.tokens):
        yield None


def _cut_text(piece: Piece, spans: Sequence[Span], words: Words) -> str:
    parts = (
        MARKER if span is None else words.decode(piece.tokens[slice(*span)])
        for span in _with_gaps(piece, spans)
    )
    return "".join(parts).removeprefix("\n")


def _text(message: ChatMessage) -> str:
    """As the template gets it (`serving.tokens`)."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content)
    return message.content or ""


def _beside(message: ChatMessage) -> str:
    extra: dict[str, Any] = message.model_extra or {}
    return json.dumps(extra, ensure_ascii=False) if extra else ""


def _fronted(message: ChatMessage, front: str) -> ChatMessage:
    if isinstance(message.content, list):
        parts = [TextPart(type="text", text=front), *message.content]
        return message.model_copy(update={"content": parts})
    return message.model_copy(update={"content": front + (message.content or "")})
