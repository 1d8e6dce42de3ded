"""What does the fake engine say, whoever asks it over whichever wire?

Every answer is the same 16 tokens, in the events of vLLM's OpenAI server: one with the role, one a
token, `[DONE]`. A request whose prompt says `pace=20ms` gets a token every 20 ms, others all at
once. Where token ids are asked for they stand where vLLM puts them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

TOKENS = 16
WORD = "word"  # in every token, and nowhere else in an answer
PROMPT_TOKENS = 40
_PACE = re.compile(rb"pace=(\d+)ms")
_STREAMS = re.compile(rb'"stream":\s*true')
_HEAD = {"id": "chatcmpl-0123456789abcdef", "created": 1_700_000_000}
_USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": TOKENS,
    "total_tokens": PROMPT_TOKENS + TOKENS,
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How answers of an endpoint are written."""

    chat: bool

    def events(self, model: str, *, ids: bool = False) -> list[str]:
        """The payloads of a streamed answer, without the closing `[DONE]`."""
        told = [self._event(model, index, ids=ids) for index in range(1, TOKENS + 1)]
        return [self._first(model, ids=ids), *told] if self.chat else told

    def whole(self, model: str) -> dict[str, Any]:
        """An answer that is not streamed."""
        text = f" {WORD}" * TOKENS
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": "length"}
        kind = "chat.completion" if self.chat else "text_completion"
        return {**_HEAD, "object": kind, "model": model, "choices": [choice], "usage": _USAGE}

    def _first(self, model: str, *, ids: bool) -> str:
        delta = {"role": "assistant", "content": ""}
        prompt = {"prompt_token_ids": list(range(100, 100 + PROMPT_TOKENS)) if ids else None}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._dump(model, choice, **prompt)

    def _event(self, model: str, index: int, *, ids: bool) -> str:
        said: dict[str, Any] = {"delta": {"content": f" {WORD}"}} if self.chat else {}
        said = said or {"text": f" {WORD}"}
        ended = "length" if index == TOKENS else None
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": ended}
        return self._dump(model, {**choice, "token_ids": [1000 + index] if ids else None})

    def _dump(self, model: str, choice: dict[str, Any], **more: Any) -> str:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        event = {**_HEAD, "object": kind, "model": model, "choices": [choice], **more}
        return json.dumps(event, separators=(",", ":"))


CHAT, COMPLETIONS = Kind(chat=True), Kind(chat=False)


def question(model: str, *, stream: bool, pace_ms: int = 0) -> bytes:
    """The body of a chat request for one answer."""
    said = f"Say the same sixteen tokens again, please. pace={pace_ms}ms"
    messages = [{"role": "user", "content": said}]
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "stream": stream}
    return json.dumps(body).encode()


def pace_s(body: bytes) -> float:
    """Seconds from one token to the next that a request asks for."""
    found = _PACE.search(body)
    return int(found[1]) / 1000 if found else 0.0


def streams(body: bytes) -> bool:
    """Whether a request wants events."""
    return _STREAMS.search(body) is not None
