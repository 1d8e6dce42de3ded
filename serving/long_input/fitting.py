"""How is a prompt cut so that it really fits? It is measured as the engine will see it, and again.

What pieces cost is an estimate: a template adds to each message what it likes, and a text that was
cut encodes to another number of tokens. So a policy is asked, the outcome measured by the model's
own template and tokenizer, and the policy asked again for as much more or less, a few times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from serving.errors import ApiError, bad_request
from serving.long_input.draft import Draft
from serving.long_input.parts import Parts
from serving.long_input.policies import Policy
from serving.long_input.prompt import LEAST_TOKENS, MARKER, LongPrompt, Segment, Selection, grouped
from serving.long_input.words import Words
from serving.requests import Body

ROUNDS = 6
# Tokens below the budget that are not worth another round.
_CLOSE = 8

Encode = Callable[[Body], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What a prompt is cut with. `encode`: a body's prompt as the engine sees it."""

    words: Words = field(repr=False)
    encode: Encode
    segment_tokens: int
    recall_tokens: int = 0
    earlier: tuple[Segment, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """A body and what stayed in it. `prompt`: its tokens, `recalled` of them from earlier."""

    body: Body
    selection: Selection
    prompt: Sequence[int]
    recalled: int = 0

    @property
    def tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt)


def long_prompt(draft: Draft, frame: Frame) -> LongPrompt:
    """A draft as policies see it."""
    system, pinned, question, groups = grouped([piece.role for piece in draft.pieces])
    return LongPrompt(
        pieces=draft.pieces,
        system=system,
        pinned=pinned,
        question=question,
        groups=groups,
        words=frame.words,
        marker=len(frame.words.encode(MARKER)),
        parts=Parts(
            [piece.tokens for piece in draft.pieces], size=frame.segment_tokens, words=frame.words
        ),
        earlier=frame.earlier,
        recall_tokens=frame.recall_tokens,
    )


def shorten(
    draft: Draft, prompt: LongPrompt, policy: Policy, *, encode: Encode, tokens: int, budget: int
) -> Shortened:
    """A draft whose prompt has `tokens`, within `budget`. Raises ApiError (400) if it cannot be."""
    prompt, beside = _priced(draft, prompt, encode, tokens=tokens)
    least = beside + prompt.cost(prompt.least().kept)
    if len(prompt.pieces[prompt.question].tokens) > LEAST_TOKENS:
        least += LEAST_TOKENS
    if least > budget:
        raise _nothing_to_cut(least, budget)
    search, best = _Search(budget - beside), None
    for _ in range(ROUNDS):
        selection = policy(prompt, search.room)
        if best is not None and best.selection == selection:
            break  # more room changes nothing
        made = _rendered(draft, selection, encode)
        if made.tokens <= budget and (best is None or made.tokens > best.tokens):
            best = made
        if 0 <= budget - made.tokens <= _CLOSE:
            break
        search.told(spare=budget - made.tokens)
    if best is None:
        raise _nothing_to_cut(least, budget)
    return best


class _Search:
    """Looks for the largest room whose outcome fits: by what was spare, within what is known."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._fits: int | None = None
        self._exceeds: int | None = None
        self._step = 1

    def told(self, *, spare: int) -> None:
        """The outcome of `room` left so many tokens spare; fewer than none: it exceeded."""
        if spare < 0:
            self._exceeds = self.room
            # A text that grows by being cut is cut harder each time.
            spare *= self._step
            self._step *= 2 if self._fits is None else 1
        else:
            self._fits = self.room
        self.room += spare
        if self._fits is not None and self._exceeds is not None:
            between = range(self._fits + 1, self._exceeds)
            if self.room not in between:
                self.room = (self._fits + self._exceeds) // 2


def _priced(
    draft: Draft, prompt: LongPrompt, encode: Encode, *, tokens: int
) -> tuple[LongPrompt, int]:
    """The prompt with what the template adds to each message, and tokens beside all messages.

    Two measurements, of all and of the least, tell the two.
    """
    least = prompt.least()
    beside = len(encode(draft.body(least))) - prompt.cost(least.kept)
    everything = prompt.all_of(range(len(prompt.pieces)))
    more = len(prompt.pieces) - len(least.kept)
    if more == 0:
        return prompt, beside
    each = max(0, round((tokens - beside - prompt.cost(everything)) / more))
    pieces = tuple(replace(piece, fixed=piece.fixed + each) for piece in prompt.pieces)
    return replace(prompt, pieces=pieces), beside - each * len(least.kept)


def _rendered(draft: Draft, selection: Selection, encode: Encode) -> Shortened:
    body = draft.body(selection)
    prompt, recalled = encode(body), 0
    if selection.recalled:
        recalled = len(prompt) - len(encode(draft.body(replace(selection, recalled=()))))
    return Shortened(body=body, selection=selection, prompt=prompt, recalled=recalled)


def _nothing_to_cut(least: int, budget: int) -> ApiError:
    return bad_request(
        f"The prompt has to be cut to {budget} tokens, and what may not be cut (system messages, "
        f"tools, the frame of the question) has {least}. Shorten these, or ask for fewer output "
        "tokens.",
        code="context_length_exceeded",
    )
