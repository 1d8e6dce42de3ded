"""memory: the newest turns stay, and what belongs to the question comes back from earlier ones.

Earlier: what this request would lose to the window, and what the conversation's requests before
it held (`serving.long_input.store`), whether this one repeats it or not. What comes back stands in
front of the question's text, where every chat template takes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from serving.long_input.prompt import Kept, LongPrompt, Segment, Selection
from serving.long_input.relevance import scores
from serving.long_input.rerank import question_span
from serving.long_input.segments import Span
from serving.long_input.window import sliding_window

RECALLED = "Earlier in this conversation:\n"


def memory(prompt: LongPrompt, room: int) -> Selection:
    """A window, and in front of the question the earlier segments that have to do with it.

    A prompt that fits is not cut to make room for them, nor is a question that does.
    """
    window = sliding_window(prompt, room)
    if window.kept != prompt.all_of(range(len(prompt.pieces))):
        reserve = min(prompt.recall_tokens, room // 3)
        spare = room - prompt.cost(prompt.all_of((*prompt.system, *prompt.pinned)))
        if spare >= 0:  # the question is whole, and stays so
            reserve = min(reserve, spare)
        window = sliding_window(prompt, room - reserve)
    unseen = _unseen(prompt, window.kept)
    left = min(prompt.recall_tokens, room - prompt.cost(window.kept))
    recalled = _relevant(prompt, unseen, left, question=question_span(prompt, room))
    return Selection(kept=window.kept, recalled=recalled)


def segments_of(prompt: LongPrompt) -> list[tuple[Segment, int]]:
    """What of a prompt is worth remembering, all but its instructions, and tokens of each."""
    return [(segment, stop - start) for _, (start, stop), segment in _segments(prompt)]


def as_text(recalled: Iterable[Segment]) -> str:
    """Segments as they are put in front of the question."""
    lines = "\n".join(map(_line, recalled))
    return f"{RECALLED}{lines}\n\n" if lines else ""


def _line(segment: Segment) -> str:
    return f"[{segment.role}] {segment.text.strip()}"


def _segments(prompt: LongPrompt) -> list[tuple[int, Span, Segment]]:
    return [
        (at, span, Segment(piece.role, text))
        for at, piece in enumerate(prompt.pieces)
        if at not in prompt.system
        for span in prompt.parts.spans(at)
        if (text := prompt.parts.decoded(at, span)).strip()
    ]


def _unseen(prompt: LongPrompt, kept: Kept) -> list[Segment]:
    """Segments that are not in what is kept, oldest first, each once."""
    own = _segments(prompt)
    seen = {
        segment
        for at, (start, stop), segment in own
        if any(first <= start and stop <= last for first, last in kept.get(at, ()))
    }
    known = dict.fromkeys((*prompt.earlier, *(segment for _, _, segment in own)))
    return [segment for segment in known if segment not in seen]


def _relevant(
    prompt: LongPrompt, segments: list[Segment], left: int, *, question: Span
) -> tuple[Segment, ...]:
    """Those that fit, the most relevant first, of equal ones the later; in their order."""
    parts, words = prompt.parts, prompt.words
    lines = [parts.encoded(_line(segment)) for segment in segments]
    asked = parts.terms(prompt.question, question)
    found = scores(asked, [words.terms(line) for line in lines])
    left -= len(parts.encoded(RECALLED)) + 1
    chosen: list[int] = []
    for at in sorted(range(len(segments)), key=lambda at: (found[at], at), reverse=True):
        if len(lines[at]) < left:  # and the end of the line
            left -= len(lines[at]) + 1
            chosen.append(at)
    return tuple(segments[at] for at in sorted(chosen))
