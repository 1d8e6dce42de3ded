"""What becomes of a body whose prompt is too long? A policy's answer for each of its prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serving.long_input.choice import POLICY_HEADER
from serving.long_input.draft import ChatDraft, Draft, TextDraft, TokensDraft
from serving.long_input.fitting import Frame, long_prompt, shorten
from serving.long_input.memory import segments_of
from serving.long_input.policies import MEMORY, POLICIES
from serving.long_input.prompt import Segment, Selection
from serving.long_input.words import Words
from serving.requests import Body, ChatBody, CompletionBody


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What was done to a request's prompt. Tokens as the engine counts them."""

    policy: str
    before: int
    kept: int
    recalled: int = 0

    @property
    def cut(self) -> int:
        """Tokens of the caller's that are gone."""
        return max(0, self.before - (self.kept - self.recalled))

    def headers(self) -> dict[str, str]:
        """For the response."""
        recalled = f"; recalled={self.recalled}" if self.recalled else ""
        return {POLICY_HEADER: f"{self.policy}; kept={self.kept}; cut={self.cut}{recalled}"}

    def details(self) -> dict[str, Any]:
        """For `usage.shardwise`."""
        recalled = {"recalled": self.recalled} if self.recalled else {}
        return {"policy": self.policy, "kept": self.kept, "cut": self.cut, **recalled}


@dataclass(frozen=True, kw_only=True)
class Handled:
    """A request as it goes on. `prompts`: in tokens; `cut` None: it is as it came."""

    body: Body
    prompts: Sequence[Sequence[int]]
    cut: Cut | None = None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        return tuple(map(len, self.prompts))

    @property
    def changes(self) -> tuple[str, ...]:
        """What was changed, as logs and traces say it."""
        return () if self.cut is None else (f"long-input={self.cut.policy}",)


def cut_to_fit(came: Handled, *, policy: str, frame: Frame, budget: int) -> Handled:
    """With every prompt within `budget` tokens. Raises ApiError (400)."""
    prompts: list[Sequence[int]] = []
    bodies: list[Body] = []
    for draft, prompt in zip(_drafts(came.body, frame.words), came.prompts, strict=True):
        if len(prompt) <= budget:
            everything = {at: piece.whole for at, piece in enumerate(draft.pieces)}
            bodies.append(draft.body(Selection(kept=everything)))
            prompts.append(prompt)
        else:
            made = shorten(
                draft,
                long_prompt(draft, frame),
                POLICIES[policy],
                encode=frame.encode,
                tokens=len(prompt),
                budget=budget,
            )
            bodies.append(made.body)
            prompts.append(made.prompt)
    cut = Cut(policy=policy, before=sum(came.lengths), kept=sum(map(len, prompts)))
    return Handled(body=_together(came.body, bodies), prompts=prompts, cut=cut)


def with_memory(
    came: Handled, *, frame: Frame, budget: int
) -> tuple[Handled, list[tuple[Segment, int]]]:
    """A request of one prompt with what it recalls, and what is to be remembered of it."""
    (draft,), (tokens,) = _drafts(came.body, frame.words), came.lengths
    prompt = long_prompt(draft, frame)
    said = segments_of(prompt)
    if tokens <= budget and not set(frame.earlier) - {segment for segment, _ in said}:
        return came, said
    made = shorten(
        draft, prompt, POLICIES[MEMORY], encode=frame.encode, tokens=tokens, budget=budget
    )
    cut = Cut(policy=MEMORY, before=tokens, kept=made.tokens, recalled=made.recalled)
    if not cut.cut and not cut.recalled:
        return came, said
    return Handled(body=made.body, prompts=[made.prompt], cut=cut), said


def _drafts(body: Body, words: Words) -> Sequence[Draft]:
    """One per prompt of the body."""
    if isinstance(body, ChatBody):
        return [ChatDraft.of(body, words)]
    assert isinstance(body, CompletionBody)  # what is embedded is never cut
    prompts = body.prompt
    if isinstance(prompts, str):
        return [TextDraft.of(body, prompts, words)]
    tokens = [item for item in prompts if isinstance(item, int)]
    if tokens:
        return [TokensDraft.of(body, tokens, words)]
    return [_draft(body, item, words) for item in prompts if not isinstance(item, int)]


def _draft(body: CompletionBody, prompt: str | list[int], words: Words) -> Draft:
    if isinstance(prompt, str):
        return TextDraft.of(body, prompt, words)
    return TokensDraft.of(body, prompt, words)


def _together(body: Body, parts: Sequence[Body]) -> Body:
    """One body of those with one prompt each."""
    if len(parts) == 1:
        return parts[0]
    prompts = [part.prompt for part in parts if isinstance(part, CompletionBody)]
    return body.model_copy(update={"prompt": prompts})
