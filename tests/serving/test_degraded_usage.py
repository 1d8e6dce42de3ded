"""What a tier has changed is told beside the usage, which clients keep when they drop headers."""

from __future__ import annotations

import json
from typing import Any

from autoscaler.snapshot import Tier
from tests.serving.fakes import FakeLink, Stage, chat, chunk, events, whole

CHAT = "/v1/chat/completions"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def stage(tier: Tier) -> Stage:
    async def script(request: Any, replica_id: str) -> Any:
        del replica_id
        if not request.stream:
            yield [{**whole("hi"), "usage": dict(USAGE)}]
            return
        yield [chunk('words with "choices":[] in them')]
        if request.body.get("stream_options"):
            yield [json.dumps({"id": "c", "choices": [], "usage": USAGE}, separators=(",", ":"))]
        yield ["[DONE]"]

    made = Stage(link=FakeLink(script))
    made.ready("a", tier=tier)
    return made


async def ask(on: Stage, **fields: Any) -> Any:
    async with on.client() as client:
        return await client.post(CHAT, json=chat(**fields))


async def test_a_degraded_answer_says_so_in_its_usage() -> None:
    on = stage(Tier.SHORT_OUTPUT)
    told = {"tier": 2, "degraded": ["logprobs-off", "max-tokens=16"]}
    answer = await ask(on, max_tokens=90, logprobs=True)
    assert answer.json()["usage"] == {**USAGE, "shardwise": told}
    assert answer.headers["X-Shardwise-Degraded"] == "logprobs-off, max-tokens=16"
    options = {"include_usage": True}
    streamed = await ask(on, max_tokens=90, logprobs=True, stream=True, stream_options=options)
    *words, usage, done = events(streamed.text)
    assert json.loads(usage)["usage"] == {**USAGE, "shardwise": told}
    assert done == "[DONE]"
    assert words == [chunk('words with "choices":[] in them')]
    on.assert_idle()


async def test_an_answer_that_was_not_changed_is_as_the_engine_gave_it() -> None:
    for tier, fields in ((Tier.NORMAL, {"logprobs": True}), (Tier.SHORT_OUTPUT, {"max_tokens": 5})):
        on = stage(tier)
        assert (await ask(on, **fields)).json()["usage"] == USAGE
