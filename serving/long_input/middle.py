"""middle_out: beginning and end stay, the middle goes.

Models find best what stands at either end of a long prompt (Liu et al., "Lost in the Middle",
2023).
"""

from __future__ import annotations

from serving.long_input.prompt import LongPrompt, Selection
from serving.long_input.trim import ends, pinned, reach


def middle_out(prompt: LongPrompt, room: int) -> Selection:
    """The first and the last turns, half of the room for each, with a mark between them."""
    kept = pinned(prompt, room, share=lambda tokens: (tokens - tokens // 2, tokens // 2))
    left = room - prompt.cost(kept) - prompt.marker
    groups = prompt.groups
    late = reach(prompt, groups[::-1], left // 2)
    edge = len(groups) - late.whole  # those from here on stay whole
    early = reach(prompt, groups[:edge], left - late.spent)
    for group in (*groups[: early.whole], *groups[edge:]):
        kept |= prompt.all_of(group)
    if early.whole < edge:
        # The same group, cut in its middle, if both ends have reached it.
        parts = {early.whole: [early.part, 0]}
        parts.setdefault(edge - 1, [0, 0])[1] = late.part
        for at, (head, tail) in parts.items():
            if head or tail:
                kept |= ends(prompt, groups[at], head=head, tail=tail)
        if early.whole and not early.part and not late.part:
            last = groups[early.whole - 1][-1]
            size = len(prompt.pieces[last].tokens)
            kept[last] = ((0, size), (size, size))  # nothing more of it: the mark alone
    return Selection(kept=kept)
