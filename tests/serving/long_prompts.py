"""A model whose tokens are words, and conversations too long for it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from serving.errors import bad_request
from serving.long_input.fitting import Frame
from serving.long_input.words import Words
from serving.requests import Body, ChatBody, ChatMessage, CompletionBody

PER_MESSAGE = 3  # tokens a template adds to each message
PER_PROMPT = 4  # and to all of them
_WORD = re.compile(r"\s*\S+|\s+")


class WordModel:
    """Each word is a token, with the spaces before it; its template takes turns strictly."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._texts: list[str] = []

    def tokens(self, text: str) -> list[int]:
        return [self._id(word) for word in _WORD.findall(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._texts[token] for token in tokens)

    def encode(self, body: Body) -> list[list[int]]:
        if isinstance(body, ChatBody):
            return [self._chat(body)]
        special = [] if body.add_special_tokens is False else self.tokens("<s>")
        prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if isinstance(prompts[0], int):
            return [list(prompts)]
        made = [special + self.tokens(p) if isinstance(p, str) else list(p) for p in prompts]
        if not all(made):
            raise bad_request("empty", code="invalid_value")
        return made

    def words(self) -> Words:
        return Words(self.tokens, self.decode)

    def frame(self, **fields: Any) -> Frame:
        return Frame(
            words=self.words(),
            encode=lambda body: self.encode(body)[0],
            **{"segment_tokens": 8} | fields,
        )

    def _chat(self, body: ChatBody) -> list[int]:
        asks = [m.role for m in body.messages if m.role in ("user", "assistant")]
        if any(one == two == "user" for one, two in itertools.pairwise(asks)) or asks[:1] == [
            "assistant"
        ]:
            raise bad_request("roles must alternate", code="invalid_value")
        made = [0] * (PER_PROMPT + len(body.tools or ()) * 5)
        for message in body.messages:
            beside = json.dumps(message.model_extra) if message.model_extra else ""
            made += [0] * PER_MESSAGE + self.tokens(text_of(message)) + self.tokens(beside)
        return made

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._texts)
            self._texts.append(word)
        return self._ids[word]


def text_of(message: ChatMessage) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content)
    return message.content or ""


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "big", "messages": list(messages), **fields})


def says(role: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **fields}


def completion(prompt: object, **fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "big", "prompt": prompt, **fields})


def filler(words: int, *, start: int = 0) -> str:
    """Different words, in sentences of ten and paragraphs of thirty."""
    ends = {10: ".", 20: ".", 0: ".\n\n"}
    made = (f"w{at}{ends.get(at % 30, '')}" for at in range(start + 1, start + words + 1))
    return " ".join(made).rstrip()


@st.composite
def conversations(draw: st.DrawFn) -> ChatBody:
    """Turns with and without tools, each word once; the last one may be in the middle of a step."""
    numbers = itertools.count()

    def text(most: int) -> str:
        return " ".join(f"w{next(numbers)}" for _ in range(draw(st.integers(1, most))))

    def steps(most: int) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for _ in range(draw(st.integers(0, most))):
            call = f"call{next(numbers)}"
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": call, "type": "function", "function": function}]
            made += [
                {"role": "assistant", "content": None, "tool_calls": calls},
                says("tool", text(60), tool_call_id=call),
            ]
        return made

    messages = [says("system", text(20))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 5))):
        messages += [says("user", text(60)), *steps(2), says("assistant", text(60))]
    messages += [says("user", text(120)), *steps(3)]
    return chat(*messages)
