"""Prompts in tokens, over a tokenizer of our own: one token a word, and a chat template."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from serving.errors import ApiError
from serving.requests import Body, ChatBody, CompletionBody, EmbeddingBody
from serving.tokens import PromptTokenizer, torch_left_out

# Role, content, arguments of tool calls one by one, tools; then the turn of the assistant.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'developer' %}{{ raise_exception('no developers') }}"
    "{% endif %} {{ m['role'] }} {{ m['content'] + '' }}"
    "{% for c in m.get('tool_calls', []) %}"
    "{% for k, v in c.function.arguments.items() %} {{ k }} {{ v }}{% endfor %}{% endfor %}"
    "{% endfor %}{% for t in tools or [] %} tool{% endfor %}{% if polite %} please{% endif %}"
    " assistant"
)

# In a process of its own, as a gateway is: here others have imported torch already.
ALONE = """
import sys
from serving.requests import ChatBody
from serving.tokens import PromptTokenizer, torch_left_out
with torch_left_out():
    tokenizer = PromptTokenizer.load(sys.argv[1])
assert "torch" not in sys.modules
print(tokenizer.encode(ChatBody.model_validate_json(sys.argv[2])))
import torch
print(torch.ones(1).sum().item())
"""


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    fast.chat_template = TEMPLATE
    return PromptTokenizer(fast)


def chat(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return ChatBody.model_validate({"model": "m", "messages": list(messages), **fields})


def text(prompt: object, **fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"model": "m", "prompt": prompt, **fields})


def lengths(tokenizer: PromptTokenizer, body: Body) -> list[int]:
    return [len(tokens) for tokens in tokenizer.encode(body)]


def test_a_chat_is_counted_through_its_template(tokenizer: PromptTokenizer) -> None:
    assert lengths(tokenizer, chat({"role": "user", "content": "one two"})) == [4]


def test_parts_are_counted_as_their_text(tokenizer: PromptTokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert lengths(tokenizer, chat({"role": "user", "content": parts})) == [4]


def test_tools_calls_and_template_arguments_are_counted(tokenizer: PromptTokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    body = chat(
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
        tools=[{"type": "function", "function": {"name": "f"}}],
        chat_template_kwargs={"polite": True},
    )
    # assistant, a, 1 | tool, 42 | tool | please | assistant
    assert lengths(tokenizer, body) == [8]


@pytest.mark.parametrize(
    ("prompt", "counts"),
    [("one two", [2]), (["one", "two three"], [1, 2]), ([1, 2, 3], [3]), ([[1], [2, 3]], [1, 2])],
)
def test_every_prompt_of_a_completion_is_counted(
    tokenizer: PromptTokenizer, prompt: object, counts: list[int]
) -> None:
    assert lengths(tokenizer, text(prompt)) == counts


@pytest.mark.parametrize("prompt", ["", [], [[]], ["one", ""], [[1], []]])
def test_an_empty_prompt_is_refused(tokenizer: PromptTokenizer, prompt: object) -> None:
    with pytest.raises(ApiError, match="empty prompt") as caught:
        lengths(tokenizer, text(prompt))
    assert (caught.value.status, caught.value.param) == (400, "prompt")
    with pytest.raises(ApiError, match="empty prompt") as caught:
        lengths(tokenizer, EmbeddingBody.model_validate({"model": "m", "input": prompt}))
    assert (caught.value.status, caught.value.param) == (400, "input")


def test_messages_the_template_refuses_are_the_callers_error(tokenizer: PromptTokenizer) -> None:
    with pytest.raises(ApiError, match="no developers") as caught:
        lengths(tokenizer, chat({"role": "developer", "content": "x"}))
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "conversation", "return_dict"])
def test_the_template_itself_may_not_be_replaced(tokenizer: PromptTokenizer, name: str) -> None:
    body = chat({"role": "user", "content": "x"}, chat_template_kwargs={name: "y"})
    with pytest.raises(ApiError, match=name) as caught:
        lengths(tokenizer, body)
    assert caught.value.param == "chat_template_kwargs"


def test_tokens_come_back_as_text_special_ones_too(tokenizer: PromptTokenizer) -> None:
    (tokens,) = tokenizer.encode(text("one two"))
    assert tokenizer.decode(tokens) == "[UNK] [UNK]"


def test_a_tokenizer_needs_no_torch_and_counts_the_same_without(
    tokenizer: PromptTokenizer, tmp_path: Path
) -> None:
    tokenizer._tokenizer.save_pretrained(tmp_path)
    body = chat(
        {"role": "user", "content": "one two"},
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path), body.model_dump_json(exclude_unset=True)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:2] == [str(tokenizer.encode(body)), "1.0"]


def test_torch_in_use_stays_in_use() -> None:
    import torch

    with torch_left_out():
        assert sys.modules["torch"] is torch
    assert sys.modules["torch"] is torch
