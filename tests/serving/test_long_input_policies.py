"""Whatever is cut: it fits, in its order, and nothing that belongs together is torn apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ApiError
from serving.long_input.apply import Handled, cut_to_fit, with_memory
from serving.long_input.policies import MEMORY, POLICIES
from serving.requests import Body, ChatBody
from tests.serving.long_prompts import (
    WordModel,
    chat,
    completion,
    conversations,
    filler,
    says,
    text_of,
)

CUTTING = [name for name in POLICIES if name != MEMORY]
MARK = "[…]"


def shortened(body: Body, policy: str, *, budget: int, **frame: int) -> Handled:
    model = WordModel()
    came = Handled(body=body, prompts=model.encode(body))
    if policy == MEMORY:
        frame = {"recall_tokens": 40} | frame
        return with_memory(came, frame=model.frame(**frame), budget=budget)[0]
    return cut_to_fit(came, policy=policy, frame=model.frame(**frame), budget=budget)


def contents(handled: Handled) -> list[str]:
    assert isinstance(handled.body, ChatBody)
    return [text_of(message) for message in handled.body.messages]


def words(text: str) -> list[str]:
    return [word for word in text.split() if word != MARK]


@given(conversations(), st.sampled_from(CUTTING), st.integers(40, 400))
def test_a_cut_chat_fits_and_is_what_was_said_in_its_order(
    body: ChatBody, policy: str, budget: int
) -> None:
    model = WordModel()
    try:
        made = shortened(body, policy, budget=budget)
    except ApiError as error:
        assert error.code == "context_length_exceeded"
        return
    (tokens,) = map(len, model.encode(made.body))  # which refuses roles out of turn
    assert made.lengths == (tokens,)
    assert tokens <= max(budget, 0)
    said = [word for message in body.messages for word in words(text_of(message))]
    rest = iter(said)
    assert all(word in rest for text in contents(made) for word in words(text))


@given(conversations(), st.sampled_from(list(POLICIES)), st.integers(40, 400))
def test_system_question_and_tool_pairs_stay(body: ChatBody, policy: str, budget: int) -> None:
    try:
        made = shortened(body, policy, budget=budget)
    except ApiError as error:
        assert error.code == "context_length_exceeded"
        return
    assert isinstance(made.body, ChatBody)
    messages = made.body.messages
    assert [m for m in messages if m.role == "system"] == [
        m for m in body.messages if m.role == "system"
    ]
    asked = [m for m in body.messages if m.role == "user"][-1]
    kept = [m for m in messages if m.role == "user"][-1]
    assert words(text_of(kept))
    if policy != "middle_out":
        assert text_of(kept).endswith(text_of(asked).split()[-1])
    extras = [message.model_extra or {} for message in messages]
    called = [call["id"] for extra in extras for call in extra.get("tool_calls", [])]
    answered = [extra["tool_call_id"] for extra in extras if "tool_call_id" in extra]
    assert called == answered


@given(conversations(), st.sampled_from(list(POLICIES)))
def test_what_fits_stays_as_it_is(body: ChatBody, policy: str) -> None:
    made = shortened(body, policy, budget=10_000)
    assert made.body == body


@given(conversations(), st.sampled_from(CUTTING), st.integers(60, 400))
def test_what_was_cut_is_not_cut_again(body: ChatBody, policy: str, budget: int) -> None:
    try:
        once = shortened(body, policy, budget=budget)
    except ApiError:
        return
    assert shortened(once.body, policy, budget=budget).body == once.body


@given(
    st.integers(200, 600),
    st.sampled_from(CUTTING),
    st.integers(40, 150),
    st.sampled_from(["text", "ids"]),
)
def test_a_long_prompt_is_cut_to_all_that_fits(
    size: int, policy: str, budget: int, form: str
) -> None:
    text = filler(size)
    model = WordModel()
    body = completion(text if form == "text" else model.tokens(text))
    came = Handled(body=body, prompts=model.encode(body))
    made = cut_to_fit(came, policy=policy, frame=model.frame(), budget=budget)
    assert type(made.body.prompt) is type(body.prompt)  # type: ignore[union-attr]
    (tokens,) = made.lengths
    assert budget - 20 <= tokens <= budget, "a segment's worth may be left"


def test_the_window_is_the_end_of_what_was_said() -> None:
    said = [says("user", filler(50)), says("assistant", filler(50, start=50))]
    body = chat(says("system", "be brief"), *said, *said, says("user", "and now?"))
    system, first, *others, last = contents(shortened(body, "sliding_window", budget=180))
    assert (system, last) == ("be brief", "and now?")
    assert first.startswith(MARK)
    assert filler(50).endswith(first.removeprefix(f"{MARK}\n").strip())
    assert others == [filler(50, start=50), filler(50), filler(50, start=50)]


def test_an_answer_cut_in_its_middle_keeps_a_mark_of_its_question() -> None:
    said = [says("user", filler(50)), says("assistant", filler(50, start=50))]
    made = contents(shortened(chat(*said, says("user", "and now?")), "sliding_window", budget=50))
    assert made[0].strip() == MARK
    assert made[1].endswith(filler(50, start=50)[-20:])


def test_the_middle_goes_and_a_mark_stands_in_its_place() -> None:
    turns = [
        says(role, filler(20, start=20 * at)) for at, role in enumerate(["user", "assistant"] * 6)
    ]
    body = chat(*turns, says("user", "and now?"))
    made = contents(shortened(body, "middle_out", budget=150))
    assert made[0] == filler(20)
    assert made[-2] == filler(20, start=220)
    assert 1 <= sum(MARK in text for text in made) <= 2
    one = contents(shortened(chat(says("user", filler(300))), "middle_out", budget=60))
    head, tail = one[0].split(f"\n{MARK}\n")
    assert filler(300).startswith(head)
    assert filler(300).endswith(tail)
    assert abs(len(head.split()) - len(tail.split())) <= 1


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_what_the_question_asks_for_stays(place: float) -> None:
    text = filler(600).split("\n\n")
    text.insert(int(place * len(text)), "The code of the safe is 4711.")
    document, question = "\n\n".join(text), "What is the code of the safe?"
    apart = chat(says("user", document), says("assistant", "noted."), says("user", question))
    together = chat(says("user", f"{document}\n\n{question}"))
    for body in (apart, together, completion(f"{document}\n\n{question}")):
        made = shortened(body, "rerank", budget=120)
        told = made.body.model_dump_json()
        assert "4711" in told
        assert question in told
        assert "4711" not in shortened(body, "sliding_window", budget=60).body.model_dump_json()


def test_of_several_prompts_each_is_cut_and_short_ones_are_not() -> None:
    body = completion([filler(200), "short one", filler(300)], n=2)
    made = shortened(body, "middle_out", budget=50)
    prompts = made.body.prompt  # type: ignore[union-attr]
    assert prompts[1] == "short one"
    assert len(prompts) == 3
    assert max(made.lengths) <= 50
    assert made.body.n == 2
    assert made.cut is not None
    assert (made.cut.before, made.cut.kept) == (201 + 3 + 301, sum(made.lengths))


def test_a_long_tool_result_is_cut_and_not_its_question() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    for policy in POLICIES:
        body = chat(
            says("user", "what does the file say?"),
            {"role": "assistant", "content": None, "tool_calls": calls},
            says("tool", filler(500), tool_call_id="1"),
        )
        asked, call, result = contents(shortened(body, policy, budget=100))
        assert asked == "what does the file say?" or (policy == MEMORY and asked.endswith("say?"))
        assert call == ""
        assert MARK in result


def test_what_may_not_be_cut_is_named_when_it_is_too_long() -> None:
    body = chat(says("system", filler(100)), says("user", "hello"))
    with pytest.raises(ApiError) as caught:
        shortened(body, "rerank", budget=80)
    assert caught.value.code == "context_length_exceeded"
    assert "to 80 tokens" in caught.value.message
    assert "system messages" in caught.value.message


def test_parts_of_a_message_stay_parts_where_nothing_is_cut() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = chat(
        says("user", filler(200)), says("assistant", "ok"), {"role": "user", "content": parts}
    )
    made = shortened(body, "sliding_window", budget=60)
    assert isinstance(made.body, ChatBody)
    assert made.body.messages[-1] == body.messages[-1]
