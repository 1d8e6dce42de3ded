"""sliding_window: what was said last stays, as much of it as fits."""

from __future__ import annotations

from serving.long_input.prompt import LongPrompt, Selection
from serving.long_input.trim import ends, pinned, reach


def sliding_window(prompt: LongPrompt, room: int) -> Selection:
    """The newest turns whole, and of the next older one its end."""
    kept = pinned(prompt, room, share=lambda tokens: (0, tokens))
    newest_first = prompt.groups[::-1]
    near = reach(prompt, newest_first, room - prompt.cost(kept))
    for group in newest_first[: near.whole]:
        kept |= prompt.all_of(group)
    if near.part:
        kept |= ends(prompt, newest_first[near.whole], head=0, tail=near.part)
    return Selection(kept=kept)
