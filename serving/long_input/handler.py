"""Does a request's prompt fit, and what is done where it does not? The gateway's step for it.

Whether it fits is measured in any case; policies and memory are touched only by requests that need
them. All that takes time in proportion to the text runs off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serving.admission import PoolFront
from serving.errors import ApiError, bad_request, prompt_over_limit, too_long_to_cut
from serving.long_input.apply import Handled, cut_to_fit, with_memory
from serving.long_input.choice import Choice, no_conversation
from serving.long_input.fitting import Frame
from serving.long_input.policies import MEMORY, REJECT
from serving.long_input.store import Conversation, LocalStore, SegmentStore
from serving.long_input.words import Words
from serving.metrics import GatewayMetrics
from serving.offload import OffLoop
from serving.requests import DEFAULT_COMPLETION_TOKENS, Body, CompletionBody, EmbeddingBody
from serving.settings.config import LongInputSection


class LongInput:
    """Applies the policies, one per gateway process. `store`: where memory is, here by default."""

    def __init__(
        self,
        settings: LongInputSection,
        *,
        off_loop: OffLoop,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        store: SegmentStore | None = None,
    ) -> None:
        self._settings = settings
        self._off_loop = off_loop
        self._metrics = metrics
        self._words: dict[str, Words] = {}
        self._store = store or LocalStore(
            conversations=settings.memory_conversations,
            tokens=settings.memory_tokens,
            ttl_s=settings.memory_ttl_s,
            clock=clock,
        )

    async def handle(
        self, body: Body, *, front: PoolFront, choice: Choice, owner: str, size_bytes: int
    ) -> Handled:
        """The request with a prompt that fits, as far as its policy goes. Raises ApiError (400).

        `owner`: whose conversations may be recalled. What is still too long afterwards is for
        `serving.admission.fit` to refuse.
        """
        policy = choice.policy or self._settings.policy
        prompts = await self._off_loop.run(lambda: front.encode(body), size_bytes=size_bytes)
        came = Handled(body=body, prompts=prompts)
        if isinstance(body, EmbeddingBody) or self._budget(body, front) < 1:
            return came
        if policy == MEMORY and choice.conversation is not None:
            where = Conversation(owner, choice.conversation)
            handled = await self._with_memory(came, front, where=where, size_bytes=size_bytes)
        elif max(came.lengths) <= self._most(body, front):
            return came
        else:
            handled = await self._cut(came, front, policy=policy, size_bytes=size_bytes)
        if handled.cut is not None:
            self._metrics.long_inputs.labels(policy).inc()
            self._metrics.long_input_cut.labels(policy).inc(handled.cut.cut)
        return handled

    async def _cut(
        self, came: Handled, front: PoolFront, *, policy: str, size_bytes: int
    ) -> Handled:
        if policy == REJECT:
            self._metrics.long_inputs.labels(policy).inc()
            self._check_limit(came, front)
            return came
        if policy == MEMORY:
            raise no_conversation()
        self._check_length(came)
        frame, budget = self._frame(front), self._budget(came.body, front)
        return await self._off_loop.run(
            lambda: cut_to_fit(came, policy=policy, frame=frame, budget=budget),
            size_bytes=size_bytes,
        )

    async def _with_memory(
        self, came: Handled, front: PoolFront, *, where: Conversation, size_bytes: int
    ) -> Handled:
        if len(came.lengths) > 1:
            raise bad_request(
                f"The long-input policy '{MEMORY}' takes one prompt, and this request has "
                f"{len(came.lengths)}.",
                param=came.body.prompt_field,
                code="invalid_value",
            )
        self._check_length(came)
        earlier = await self._store.recall(where)
        recall_tokens = self._settings.memory_recall_tokens
        frame = replace(self._frame(front), earlier=earlier, recall_tokens=recall_tokens)
        (tokens,) = came.lengths
        # A prompt that fits is not cut for what the answer usually needs.
        fits = tokens <= self._most(came.body, front)
        budget = max(self._budget(came.body, front), tokens if fits else 0)
        handled, said = await self._off_loop.run(
            lambda: with_memory(came, frame=frame, budget=budget),
            size_bytes=size_bytes + sum(len(segment.text) for segment in earlier),
        )
        await self._store.remember(where, said)
        return handled

    def _check_limit(self, came: Handled, front: PoolFront) -> None:
        limit = self._settings.limit_tokens
        if limit is not None and limit < front.max_context and max(came.lengths) > limit:
            raise prompt_over_limit(max(came.lengths), limit, param=came.body.prompt_field)

    def _check_length(self, came: Handled) -> None:
        longest = self._settings.longest_tokens
        if sum(came.lengths) > longest:
            raise too_long_to_cut(sum(came.lengths), longest, param=came.body.prompt_field)

    def _most(self, body: Body, front: PoolFront) -> int:
        """Tokens of the longest prompt that is served as it is."""
        return self._within(front.max_context - max(1, body.output_limit or 0))

    def _budget(self, body: Body, front: PoolFront) -> int:
        """Tokens that a prompt is cut to: the answer keeps its room, asked for or usual."""
        output = body.output_limit
        if output is None and isinstance(body, CompletionBody):
            output = DEFAULT_COMPLETION_TOKENS
        if output is None:
            output = min(self._settings.output_tokens, front.max_context // 2)
        return self._within(front.max_context - max(1, output))

    def _within(self, tokens: int) -> int:
        limit = self._settings.limit_tokens
        return tokens if limit is None else min(tokens, limit)

    def _frame(self, front: PoolFront) -> Frame:
        words = self._words.get(front.pool)
        if words is None:
            words = self._words[front.pool] = words_of(front)
        return Frame(
            words=words,
            encode=lambda body: front.encode(body)[0],
            segment_tokens=self._settings.segment_tokens,
        )


def words_of(front: PoolFront) -> Words:
    """The model's tokens of texts that are not a whole prompt."""

    def encode(text: str) -> list[int]:
        asked = CompletionBody(model=front.model_name, prompt=text, add_special_tokens=False)
        try:
            (tokens,) = front.encode(asked)
        except ApiError:  # a text without a token, which is no prompt
            return []
        return tokens

    return Words(encode, front.decode)
