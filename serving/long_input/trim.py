"""How is a group of messages made shorter without taking it apart? By the ends of its text.

The texts of a group are one line of tokens; its beginning, its end or both stay, and every message
with them, if only as a mark that something was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.long_input.prompt import LEAST_TOKENS, NOTHING, Group, LongPrompt
from serving.long_input.segments import Span


def ends(prompt: LongPrompt, group: Group, *, head: int, tail: int) -> dict[int, tuple[Span, ...]]:
    """The first `head` and the last `tail` tokens of a group's texts."""
    kept: dict[int, tuple[Span, ...]] = {}
    before, after = 0, prompt.text(group)
    for at in group:
        size = len(prompt.pieces[at].tokens)
        after -= size
        first = min(max(0, head - before), size)
        last = size - min(max(0, tail - after), size)
        if first >= last:
            kept[at] = prompt.pieces[at].whole
        else:
            spans = [span for span in ((0, first), (last, size)) if span[0] < span[1]]
            kept[at] = tuple(spans) or NOTHING
        before += size
    return kept


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a room reaches: so many whole groups, and so many tokens of the next one's text."""

    whole: int
    part: int
    spent: int


def reach(prompt: LongPrompt, groups: Sequence[Group], room: int) -> Reach:
    """How many of these groups, in their order, fit into `room` tokens."""
    left = room
    for count, group in enumerate(groups):
        price = prompt.cost(prompt.all_of(group))
        if price > left:
            part = left - prompt.frame(group)
            if part < LEAST_TOKENS:
                return Reach(whole=count, part=0, spent=room - left)
            return Reach(whole=count, part=part, spent=room)
        left -= price
    return Reach(whole=len(groups), part=0, spent=room - left)


Share = Callable[[int], tuple[int, int]]  # tokens that may stay → of its beginning, of its end


def pinned(prompt: LongPrompt, room: int, *, share: Share) -> dict[int, tuple[Span, ...]]:
    """What stays of the system messages, the question and the last step within `room`."""
    kept = prompt.all_of(prompt.system)
    whole = kept | prompt.all_of(prompt.pinned)
    if prompt.cost(whole) <= room:
        return whole
    texts = [len(prompt.pieces[at].tokens) for at in prompt.pinned]
    left = room - prompt.cost(kept) - prompt.frame(prompt.pinned)
    for at, tokens in zip(prompt.pinned, fair_shares(texts, left), strict=True):
        head, tail = share(max(tokens, LEAST_TOKENS))
        kept |= ends(prompt, (at,), head=head, tail=tail)
    return kept


def fair_shares(wanted: Sequence[int], room: int) -> list[int]:
    """Of `room` as much to each as it wants, the largest wants cut alike (max-min fairness)."""
    shares = [0] * len(wanted)
    left = max(0, room)
    for nth, at in enumerate(sorted(range(len(wanted)), key=lambda at: wanted[at])):
        shares[at] = min(wanted[at], left // (len(wanted) - nth))
        left -= shares[at]
    return shares
