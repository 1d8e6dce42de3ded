"""Does a request fit a model's context, and what does the engine get to see of it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.grant import Granted
from cluster.engine_work import EngineWork
from cluster.prefix_index import block_chain
from serving.dispatch import Dispatcher
from serving.errors import bad_request, context_too_long, wrong_model_kind
from serving.replica_link import ReplicaLink
from serving.requests import DEFAULT_COMPLETION_TOKENS, Body, CompletionBody, EmbeddingBody


@dataclass(frozen=True, kw_only=True)
class PoolFront:
    """One pool as the gateway fronts it.

    `max_context`: tokens, prompt and output. `expected_output`: output tokens predicted for a
    request that sets no limit. `encode`: tokens of each prompt in a body, raises ApiError.
    `decode`: text of token ids. `work`: what tokens cost on one of its replicas. `parsed`: the
    engine makes more of a chat answer than its text. `ranks`: the engine schedules by priority.
    `embeds`: the model makes vectors and no text. `sleeps`: it may have no replica until one is
    asked for.
    """

    pool: str
    model_name: str
    max_context: int
    expected_output: int
    work: EngineWork
    dispatcher: Dispatcher
    link: ReplicaLink
    encode: Callable[[Body], list[list[int]]]
    decode: Callable[[Sequence[int]], str]
    parsed: bool = False
    ranks: bool = False
    embeds: bool = False
    sleeps: bool = False


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A request measured against a model.

    `prompt_tokens`: of all prompts. `sequences`: answers generated in all. `max_tokens`: output
    limit of each, None if the caller left it open. `room`: output tokens that fit after the
    longest prompt. `chain`: the blocks that the first prompt begins with (`cluster.prefix_index`).
    """

    prompt_tokens: int
    sequences: int
    max_tokens: int | None
    room: int
    chain: tuple[int, ...] = ()


def check_kind(body: Body, front: PoolFront) -> None:
    """Raises ApiError (400) if the pool's model does not do what is asked."""
    embeds = isinstance(body, EmbeddingBody)
    if embeds != front.embeds:
        raise wrong_model_kind(front.model_name, embeds=front.embeds)


def fit(body: Body, front: PoolFront, *, prompts: Sequence[Sequence[int]]) -> Fit:
    """What a request asks of a model. `prompts`: its tokens.

    Raises ApiError (400) if it does not fit the model's context.
    """
    longest = max(map(len, prompts))
    room = front.max_context - longest
    limit = body.output_limit
    least = 0 if front.embeds else 1
    if room < least or (limit or 0) > room:
        raise context_too_long(
            prompt=longest,
            output=limit or 0,
            least=least,
            limit=front.max_context,
            param=body.prompt_field,
        )
    if limit is None and isinstance(body, CompletionBody):
        limit = min(DEFAULT_COMPLETION_TOKENS, room)
    most = room if limit is None else limit
    if (body.min_tokens or 0) > most:
        raise bad_request(
            f"'min_tokens' is {body.min_tokens}, more than the {most} output tokens this request "
            "may have.",
            param="min_tokens",
            code="invalid_value",
        )
    return Fit(
        prompt_tokens=sum(map(len, prompts)),
        sequences=len(prompts) * (body.n or 1),
        max_tokens=limit,
        room=room,
        chain=block_chain(prompts[0]),
    )


def engine_body(
    body: Body,
    *,
    granted: Granted,
    model: str,
    metered: bool = False,
    rank: int | None = None,
) -> dict[str, Any]:
    """The body as the engine gets it: what the caller set, the serving pool's name, the grant.

    Nulls of the body itself are left out (the engine's own types do not take them everywhere);
    those inside messages, tools and schemas mean something and stay. `metered`: a stream tells its
    usage, asked for or not. `rank`: for an engine that schedules by priority, 0 goes first.
    """
    data = {
        name: value
        for name, value in body.model_dump(exclude_unset=True).items()
        if value is not None
    }
    data["model"] = model
    if rank is not None:
        data["priority"] = rank
    if metered and body.stream:
        data["stream_options"] = {**data.get("stream_options", {}), "include_usage": True}
    if not granted.logprobs:
        data.pop("logprobs", None)
        data.pop("top_logprobs", None)
    if granted.max_tokens != body.output_limit:
        data.pop("max_completion_tokens", None)
        data["max_tokens"] = granted.max_tokens
    if granted.max_tokens is not None and "min_tokens" in data:
        data["min_tokens"] = min(data["min_tokens"], granted.max_tokens)
    return data
