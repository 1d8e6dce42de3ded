"""rerank: what has most to do with the question stays, in its own order.

The question is the last user message; where that is the long text itself, its last paragraph.
"""

from __future__ import annotations

from dataclasses import dataclass

from serving.long_input.prompt import LEAST_TOKENS, NOTHING, Group, LongPrompt, Selection
from serving.long_input.relevance import scores
from serving.long_input.segments import Span, last_words


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    piece: int
    span: Span
    group: Group


def rerank(prompt: LongPrompt, room: int) -> Selection:
    """The best segments that fit, of equal ones the later."""
    asked = question_span(prompt, room)
    chosen: dict[int, list[Span]] = {at: [] for at in prompt.pinned}
    chosen[prompt.question].append(asked)
    left = room - prompt.cost(prompt.all_of(prompt.system)) - prompt.frame(prompt.pinned)
    left -= asked[1] - asked[0]
    for candidate in _ranked(prompt, asked):
        opens = candidate.group if candidate.piece not in chosen else ()
        price = candidate.span[1] - candidate.span[0] + prompt.marker + prompt.frame(opens)
        if price <= left:
            left -= price
            chosen |= {at: [] for at in opens}
            chosen[candidate.piece].append(candidate.span)
    kept = prompt.all_of(prompt.system)
    for at, spans in chosen.items():
        kept[at] = _joined(spans) if prompt.pieces[at].tokens else prompt.pieces[at].whole
    return Selection(kept=kept)


def question_span(prompt: LongPrompt, room: int) -> Span:
    """Where in its piece the question stands."""
    tokens = prompt.pieces[prompt.question].tokens
    if len(tokens) <= max(room // 2, LEAST_TOKENS):
        return (0, len(tokens))
    return last_words(tokens, most=max(room // 4, LEAST_TOKENS), words=prompt.words)


def _ranked(prompt: LongPrompt, asked: Span) -> list[_Candidate]:
    candidates = [
        _Candidate(piece=at, span=span, group=group)
        for group in (*prompt.groups, prompt.pinned)
        for at in group
        for span in _spans(prompt, at, asked)
    ]
    terms = prompt.parts.terms
    found = scores(terms(prompt.question, asked), [terms(c.piece, c.span) for c in candidates])
    order = sorted(range(len(candidates)), key=lambda at: (found[at], at), reverse=True)
    return [candidates[at] for at in order]


def _spans(prompt: LongPrompt, at: int, asked: Span) -> list[Span]:
    """The segments of a piece; of the one that asks, those before the question."""
    end = asked[0] if at == prompt.question else len(prompt.pieces[at].tokens)
    return [(start, min(stop, end)) for start, stop in prompt.parts.spans(at) if start < end]


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Spans in their order, neighbours as one."""
    joined: list[Span] = []
    for start, stop in sorted(spans):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined) or NOTHING
