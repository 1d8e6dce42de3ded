"""Which tokens is this prompt? The served model's own tokenizer and chat template.

Messages reach the template as vLLM hands them over (text parts joined, a tool call's arguments as
an object), so that the count is the engine's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from serving.errors import bad_request
from serving.requests import Body, ChatBody, ChatMessage, CompletionBody, EmbeddingBody

# What `apply_chat_template` itself takes: a template may not be replaced or its output changed.
_RESERVED = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


@contextmanager
def torch_left_out() -> Iterator[None]:
    """What is imported for the first time meanwhile finds no torch.

    transformers imports all of it before it makes a tokenizer, which needs none: most of the time
    until a gateway is there, and most of its memory. Changes nothing where torch is in use.
    """
    if "torch" in sys.modules:
        yield
        return
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # that there is none
    sys.modules["torch"] = None  # type: ignore[assignment]  # how Python is told of no such module
    try:
        yield
    finally:
        del sys.modules["torch"]


class PromptTokenizer:
    """A request's prompts in tokens, as the engine will see them. `tokenizer`: transformers'.

    May be used from several threads: the first call settles the tokenizer's padding and
    truncation, after which calls only read it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer("settle")
        # What transformers puts around it costs as much as the tokenising of a short prompt.
        rust = getattr(tokenizer, "backend_tokenizer", None)
        self._ids: _Ids = _slow_ids(tokenizer) if rust is None else _fast_ids(rust)

    @classmethod
    def load(cls, model_source: str) -> PromptTokenizer:
        """With the tokenizer of a model directory or hub id."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(model_source))

    def encode(self, body: Body) -> list[list[int]]:
        """The tokens of each prompt in the body. Raises ApiError (400)."""
        prompts = (
            [self._encode_chat(body)]
            if isinstance(body, ChatBody)
            else [self._encode_prompt(prompt, body) for prompt in _prompts(body)]
        )
        if not all(prompts) or not prompts:
            raise bad_request(
                f"'{body.prompt_field}' holds an empty prompt; send at least one token.",
                param=body.prompt_field,
                code="invalid_value",
            )
        return prompts

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids, special ones included."""
        text: str = self._tokenizer.decode(list(tokens))
        return text

    def _encode_chat(self, body: ChatBody) -> list[int]:
        arguments = body.chat_template_kwargs or {}
        if reserved := sorted(_RESERVED & arguments.keys()):
            raise bad_request(
                f"'chat_template_kwargs' may not set {', '.join(reserved)}.",
                param="chat_template_kwargs",
                code="invalid_value",
            )
        try:
            text = self._tokenizer.apply_chat_template(
                [_for_template(message) for message in body.messages],
                tools=body.tools,
                add_generation_prompt=True,
                tokenize=False,
                **arguments,
            )
        except Exception as error:  # templates raise what their authors chose to
            raise bad_request(
                f"The messages do not fit the model's chat template: {error}.",
                param="messages",
                code="invalid_value",
            ) from error
        return self._ids(text, False)  # noqa: FBT003  the template has written what is special

    def _encode_prompt(
        self, prompt: str | list[int], body: CompletionBody | EmbeddingBody
    ) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        special = body.add_special_tokens is not False
        return self._ids(prompt, special)


_Ids = Callable[[str, bool], list[int]]  # of a text, with the special tokens around it or not


def _fast_ids(rust: Any) -> _Ids:
    def ids(text: str, special: bool) -> list[int]:  # noqa: FBT001
        found: list[int] = rust.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return found

    return ids


def _slow_ids(tokenizer: Any) -> _Ids:
    def ids(text: str, special: bool) -> list[int]:  # noqa: FBT001
        found: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
        return found

    return ids


def _prompts(body: CompletionBody | EmbeddingBody) -> Sequence[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    tokens = [item for item in prompt if isinstance(item, int)]
    return [tokens] if tokens else [item for item in prompt if not isinstance(item, int)]


def _for_template(message: ChatMessage) -> dict[str, Any]:
    data = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        data["content"] = "\n".join(part.text for part in message.content)
    data.setdefault("content", "")
    data["tool_calls"] = [_parsed_call(call) for call in data.get("tool_calls", [])]
    if not data["tool_calls"]:
        del data["tool_calls"]
    return data


def _parsed_call(call: Any) -> Any:
    """A tool call with its arguments as an object; anything unexpected is left to the template."""
    try:
        function = dict(call["function"])
        function["arguments"] = json.loads(function["arguments"])
    except (TypeError, KeyError, ValueError):
        return call
    return {**call, "function": function}
