"""How does another replica go on with a stream whose replica was lost?

It is asked to complete the prompt and the tokens that were generated, as token ids, for what was
left of the limits; its events are told in the words of the stream that broke (same id, kind and
model), so that the caller notices a pause and nothing else. Greedy answers are those of an
undisturbed run.

What hangs on state inside the engine cannot be taken up in its middle: several answers, log
probabilities, tools, and output held to a grammar. With stop strings a sampled answer can be taken
up only if its text ends with a token. Such streams end with an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.messages import DONE, EngineReply, EngineRequest
from serving.requests import CompletionBody
from serving.transcript import TextTranscript, Transcript

_CANNOT = (
    "tools",
    "response_format",
    "structured_outputs",
    "echo",
    "return_token_ids",
)
# Of what both kinds of request take, all is kept but what is said anew below.
_KEPT = CompletionBody.model_fields.keys() - {"logprobs", "min_tokens"}


def can_resume(request: EngineRequest) -> bool:
    """Whether the answer to this could be taken up in its middle."""
    body = request.body
    one = (body.get("n") or 1) == 1 and not (
        isinstance(body.get("prompt"), list)
        and body["prompt"]
        and not isinstance(body["prompt"][0], int)
        and len(body["prompt"]) != 1
    )
    # 0 asks for the log probabilities of the chosen tokens.
    plain = body.get("logprobs") is None or body["logprobs"] is False
    told = (body.get("stream_options") or {}).get("continuous_usage_stats")
    return (
        request.stream
        and one
        and plain
        and not told
        and not any(body.get(name) for name in _CANNOT)
    )


def transcript_of(request: EngineRequest, decode: Callable[[Sequence[int]], str]) -> Transcript:
    """Where the stream that answers this is noted."""
    kind = TextTranscript if request.body.get("stop") else Transcript
    return kind(decode)


def with_ids(request: EngineRequest) -> EngineRequest:
    """The request, its token ids asked for."""
    return replace(request, body={**request.body, "return_token_ids": True})


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A stream to be taken up: what another replica is asked, and how its answer is told.

    `request` None: all was generated, and only the end of the stream is missing.
    """

    request: EngineRequest | None
    original: EngineRequest
    first: dict[str, Any]
    prompt: int
    before: int

    @classmethod
    def of(cls, request: EngineRequest, said: Transcript, *, max_context: int) -> Resumption | None:
        """How `request` goes on after what was said; None if it cannot."""
        if not said.prompt:
            return None
        if not said.ended and not said.break_off():
            return None
        if said.ahead and request.body.get("temperature") != 0:
            return None  # the next replica need not say again what the caller has of its token
        tokens = said.tokens
        prompt = said.prompt + tokens
        limit = request.body.get("max_completion_tokens") or request.body.get("max_tokens")
        most = max_context - len(said.prompt)
        left = min(most, most if limit is None else int(limit)) - len(tokens)
        body = {name: value for name, value in request.body.items() if name in _KEPT}
        body |= {"prompt": prompt, "max_tokens": left, "stream": True, "return_token_ids": True}
        least = int(request.body.get("min_tokens") or 0) - len(tokens)
        if least > 0:
            body["min_tokens"] = least
        again = None
        if left > 0 and not said.ended:
            again = replace(request, kind="completions", body=body)
        return cls(
            request=again,
            original=request,
            first=said.first,
            prompt=len(said.prompt),
            before=len(tokens),
        )

    def end(self, said: Transcript) -> list[EngineReply]:
        """What was missing of a stream that had generated everything."""
        made: list[EngineReply] = []
        if not said.ended:
            made.append(self._event("", "length", None))
        wanted = (self.original.body.get("stream_options") or {}).get("include_usage")
        if wanted and not said.usage:
            usage = {"prompt_tokens": self.prompt, "completion_tokens": self.before}
            made.append(self._usage(usage | {"total_tokens": self.prompt + self.before}))
        return [*made, DONE]

    def told(self, reply: EngineReply) -> EngineReply:
        """An event of the other replica in the words of the stream that broke."""
        if not isinstance(reply, str) or reply == DONE:
            return reply
        event = json.loads(reply)
        if not event["choices"]:
            output = self.before + int(event["usage"]["completion_tokens"])
            usage = {**event["usage"], "prompt_tokens": self.prompt, "completion_tokens": output}
            return self._usage(usage | {"total_tokens": self.prompt + output})
        (choice,) = event["choices"]
        return self._event(choice["text"], choice["finish_reason"], choice.get("stop_reason"))

    def _event(self, text: str, finish: str | None, stop: object) -> str:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self.original.kind == "chat":
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        if finish is not None:
            choice["stop_reason"] = stop
        return self._dump([choice])

    def _usage(self, usage: dict[str, Any]) -> str:
        return self._dump([], usage=usage)

    def _dump(self, choices: list[dict[str, Any]], **more: Any) -> str:
        same = {name: self.first[name] for name in ("id", "object", "created", "model")}
        return json.dumps({**same, "choices": choices, **more}, separators=(",", ":"))
