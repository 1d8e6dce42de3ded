"""Cut prompts fit by the bundled model's own tokenizer and chat template, in any script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.bundled import HEAVY, model_cache
from serving.errors import ApiError
from serving.long_input.apply import Handled, cut_to_fit
from serving.long_input.fitting import Frame
from serving.long_input.policies import MEMORY, POLICIES
from serving.long_input.words import Words
from serving.requests import Body, ChatBody
from serving.tokens import PromptTokenizer
from tests.serving.long_prompts import chat, completion, conversations, says, text_of

CUTTING = [name for name in POLICIES if name != MEMORY]
PATH: Path = model_cache() / HEAVY

pytestmark = pytest.mark.skipif(not PATH.exists(), reason="`shardwise setup` has not run")


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.load(str(PATH))


def frame(tokenizer: PromptTokenizer, segment_tokens: int = 64) -> Frame:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(completion(text, add_special_tokens=False))[0]

    return Frame(
        words=Words(encode, tokenizer.decode),
        encode=lambda body: tokenizer.encode(body)[0],
        segment_tokens=segment_tokens,
    )


def shortened(tokenizer: PromptTokenizer, body: Body, policy: str, *, budget: int) -> Handled:
    came = Handled(body=body, prompts=tokenizer.encode(body))
    made = cut_to_fit(came, policy=policy, frame=frame(tokenizer), budget=budget)
    assert made.lengths == tuple(map(len, tokenizer.encode(made.body)))
    assert max(made.lengths) <= budget
    return made


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(body=conversations(), policy=st.sampled_from(CUTTING), budget=st.integers(60, 600))
def test_a_cut_chat_fits(
    tokenizer: PromptTokenizer, body: ChatBody, policy: str, budget: int
) -> None:
    try:
        shortened(tokenizer, body, policy, budget=budget)
    except ApiError as error:
        assert error.code == "context_length_exceeded"


SCRIPTS: dict[str, Callable[[int], str]] = {
    "English": lambda at: f"Entry {at} of the log says that all is well in room {at}.",
    "Chinese": lambda at: f"第{at}天,船上一切正常,海面平静。",
    "Japanese": lambda at: f"{at}日目の記録では、特に変わったことはありませんでした。",
    "emoji": lambda at: f"{at} 🚢🌊🌤 🧭 {at * 7} 👩‍👩‍👧‍👦",
    "no spaces": lambda at: "abcdefghij" * 6,
}


@dataclass(frozen=True)
class Hidden:
    fact: str
    question: str
    answer: str


HIDDEN = {
    "English": Hidden("The harbour pilot is called Ines.", "Who is the harbour pilot?", "Ines"),
    "Chinese": Hidden("船长的密码是八七四二。", "船长的密码是什么?", "八七四二"),
    "Japanese": Hidden("金庫の暗証番号は四二一です。", "金庫の暗証番号は何ですか。", "四二一"),
}


@pytest.mark.parametrize("policy", CUTTING)
@pytest.mark.parametrize("script", SCRIPTS)
def test_text_of_every_script_fits_and_stays_readable(
    tokenizer: PromptTokenizer, script: str, policy: str
) -> None:
    text = "\n".join(map(SCRIPTS[script], range(150)))
    for body in (completion(text), chat(says("user", text))):
        made = shortened(tokenizer, body, policy, budget=300)
        assert max(made.lengths) > 200
        assert "\ufffd" not in made.body.model_dump_json()


@pytest.mark.parametrize("script", HIDDEN)
def test_what_is_asked_for_is_found_in_every_script(
    tokenizer: PromptTokenizer, script: str
) -> None:
    lines = [SCRIPTS[script](at) for at in range(150)]
    hidden = HIDDEN[script]
    lines.insert(70, hidden.fact)
    body = chat(
        says("user", "\n".join(lines)), says("assistant", "OK"), says("user", hidden.question)
    )
    made = shortened(tokenizer, body, "rerank", budget=400)
    assert isinstance(made.body, ChatBody)
    assert hidden.answer in text_of(made.body.messages[0])


@pytest.mark.parametrize("policy", CUTTING)
def test_token_ids_that_no_vocabulary_has_are_cut_like_others(
    tokenizer: PromptTokenizer, policy: str
) -> None:
    for token in (10**6, 2**31, 2**33, 2**70):
        shortened(tokenizer, completion([token, 5, 6] * 200), policy, budget=100)
