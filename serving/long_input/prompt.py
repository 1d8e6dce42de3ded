"""What does a policy see of a prompt, and how does it say what stays of it?

A prompt is a row of *pieces*, one per message (a plain prompt is one piece). Pieces come in
*groups* that stay or go together, so that a tool's result is never without its call, and an answer
never without what it answers:

    system │ user assistant │ user assistant │ user  │ assistant tool │ assistant tool
    stays  │ a turn         │ a turn         │ asked │ a step         │ the last step

The question, the last user message, and the last step stay with at least their frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from serving.long_input.parts import Parts
from serving.long_input.segments import Span
from serving.long_input.words import Words

# A cut message of fewer tokens than this says nothing; one that has no more is not cut.
LEAST_TOKENS = 16
MARKER = "\n[…]\n"  # stands where text was cut
_PINNED_ROLES = frozenset({"system", "developer"})

Group = tuple[int, ...]  # places of pieces
Kept = Mapping[int, tuple[Span, ...]]  # by piece; a piece that is not in it is dropped
NOTHING: tuple[Span, ...] = ((0, 0),)  # of a piece that stays only with its frame


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One message's text in tokens. `fixed`: tokens around it, such as its role or tool calls."""

    role: str
    tokens: tuple[int, ...]
    fixed: int = 0

    @property
    def whole(self) -> tuple[Span, ...]:
        """All of it."""
        return ((0, len(self.tokens)),)


@dataclass(frozen=True)
class Segment:
    """A part of a conversation's earlier message."""

    role: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What stays. `kept`: spans by piece; `recalled`: segments put in front of the question."""

    kept: Kept
    recalled: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LongPrompt:
    """A prompt to be cut.

    `question`: the piece that asks. `pinned`: it and those of the last step. `groups`: what may be
    dropped, oldest first. `marker`: tokens of MARKER. `parts`: the segments of the pieces.
    `earlier`: what is remembered of the conversation, of which `recall_tokens` may come back.
    """

    pieces: tuple[Piece, ...]
    system: Group
    pinned: Group
    question: int
    groups: tuple[Group, ...]
    words: Words = field(repr=False)
    parts: Parts = field(repr=False)
    marker: int
    earlier: tuple[Segment, ...] = ()
    recall_tokens: int = 0

    def frame(self, group: Iterable[int]) -> int:
        """Tokens of pieces that stay without their text."""
        return sum(self.pieces[at].fixed + self.marker for at in group)

    def text(self, group: Iterable[int]) -> int:
        """Tokens of the pieces' texts."""
        return sum(len(self.pieces[at].tokens) for at in group)

    def cost(self, kept: Kept) -> int:
        """Tokens of what is kept, as far as pieces can tell."""
        return sum(self._piece_cost(self.pieces[at], spans) for at, spans in kept.items())

    def all_of(self, group: Iterable[int]) -> dict[int, tuple[Span, ...]]:
        """Pieces as they are."""
        return {at: self.pieces[at].whole for at in group}

    def least(self) -> Selection:
        """The least that can stay: instructions, and of what is pinned the frames."""
        long = [at for at in self.pinned if len(self.pieces[at].tokens) > LEAST_TOKENS]
        return Selection(
            kept=self.all_of((*self.system, *self.pinned)) | dict.fromkeys(long, NOTHING)
        )

    def _piece_cost(self, piece: Piece, spans: tuple[Span, ...]) -> int:
        text = sum(stop - start for start, stop in spans)
        cuts = len(spans) - 1 + (spans[0][0] > 0) + (spans[-1][1] < len(piece.tokens))
        return piece.fixed + text + self.marker * cuts


def grouped(roles: Sequence[str]) -> tuple[Group, Group, int, tuple[Group, ...]]:
    """`system`, `pinned`, `question` and `groups` of messages with these roles (at least one)."""
    system = tuple(at for at, role in enumerate(roles) if role in _PINNED_ROLES)
    others = [at for at, role in enumerate(roles) if role not in _PINNED_ROLES]
    if not others:  # nothing but instructions: the last one is what may be cut
        return system[:-1], system[-1:], system[-1], ()
    question = max((at for at in others if roles[at] == "user"), default=others[-1])
    turns = _begun_by("user", [at for at in others if at < question], roles)
    steps = _begun_by("assistant", [at for at in others if at > question], roles)
    last = steps.pop() if steps else ()
    return system, (question, *last), question, (*turns, *steps)


def _begun_by(role: str, places: Sequence[int], roles: Sequence[str]) -> list[Group]:
    groups: list[list[int]] = []
    for at in places:
        if roles[at] == role or not groups:
            groups.append([])
        groups[-1].append(at)
    return [tuple(group) for group in groups]
