"""What the gateway learns of output lengths, through the HTTP application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from autoscaler.snapshot import Tier
from cluster.lengths.features import LengthFeatures
from cluster.lengths.predictors import PREDICTORS
from cluster.routing import predicted_tokens
from cluster.sim.setup import GatewayRules
from cluster.sim.simulation import Simulation
from serving.messages import EngineReply, EngineRequest
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Script,
    Stage,
    chat,
    chunk,
    events,
    lost_after,
    whole,
)
from tests.sim.build import pool, request, setup
from tests.sim.test_lengths import Loads

CHAT = "/v1/chat/completions"
PROMPT = 3  # words of `chat`
USUAL = 10  # of the stage

JSON = {"type": "json_object"}  # such a stream is not taken up, so its ids are not asked for


def using(output: int, prompt: int = PROMPT) -> Script:
    """A replica whose answers have so many tokens, and say so as vLLM does."""
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    async def script(request: EngineRequest, replica_id: str) -> AsyncIterator[list[EngineReply]]:
        del replica_id
        if not request.stream:
            yield [{**whole("hi"), "usage": usage}]
            return
        if request.body.get("return_token_ids"):
            ids = ",".join(map(str, range(output)))
            yield [chunk("hi").replace("}]}", f',"token_ids":[{ids}]' + "}]}")]
        else:
            for _ in range(output):
                yield [chunk("hi")]
        yield ["[DONE]"]

    return script


def stage(predictor: str, script: Script, **fields: Any) -> Stage:
    limits = LimitsSection(output_cap=16, length_predictor=predictor)
    made = Stage(limits=limits, link=FakeLink(script=script), **fields)
    made.ready("a")
    return made


async def asked(on: Stage, **fields: Any) -> float:
    """Ask once; the predicted tokens it went to the replica with."""
    async with on.client() as client:
        response = await client.post(CHAT, json=chat(**fields))
    assert response.status_code == 200
    return on.link.calls[-1][1].tokens


def load(output: float, prompt: int = PROMPT) -> float:
    return predicted_tokens(prompt_tokens=prompt, output_tokens=output)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_gateway_learns_from_what_answers_have_had(stream: bool) -> None:
    on = stage("learned", using(40))
    assert await asked(on, stream=stream) == load(USUAL)
    for _ in range(60):
        await asked(on, stream=stream)
    assert await asked(on, stream=stream) == pytest.approx(load(40), rel=0.05)
    on.assert_idle()


async def test_a_stream_that_cannot_be_taken_up_is_counted_by_its_events() -> None:
    on = stage("learned", using(40))
    for _ in range(60):
        await asked(on, stream=True, response_format=JSON)
    assert "return_token_ids" not in on.link.calls[-1][1].body
    assert await asked(on, stream=True, response_format=JSON) == pytest.approx(load(40), rel=0.05)


async def test_several_answers_are_predicted_one_by_one() -> None:
    on = stage("learned", using(80))
    for _ in range(60):
        await asked(on, n=2)
    assert await asked(on, n=2) == pytest.approx(load(80), rel=0.05)
    assert await asked(on) == pytest.approx(load(40), rel=0.05)


async def test_the_formula_goes_by_the_limit() -> None:
    on = stage("formula", using(4))
    for _ in range(20):
        assert await asked(on) == load(USUAL)
        assert await asked(on, max_tokens=90) == load(90)


async def test_a_limit_is_not_taken_for_the_length() -> None:
    on = stage("learned", using(4))
    for _ in range(60):
        await asked(on, max_tokens=90)
    assert await asked(on, max_tokens=90) == pytest.approx(load(4), rel=0.05)


async def test_what_must_be_generated_is_expected() -> None:
    on = stage("learned", using(4))
    assert await asked(on, max_tokens=50, ignore_eos=True) == load(50)
    assert await asked(on, min_tokens=30) == load(30)


async def test_a_tier_that_caps_the_output_caps_the_prediction() -> None:
    on = stage("learned", using(60))
    for _ in range(60):
        await asked(on)
    on.ready("a", tier=Tier.SHORT_OUTPUT)
    assert await asked(on) == load(16)


async def test_a_cancelled_answer_teaches_nothing() -> None:
    gate = Gate("one")
    on = stage("learned", gate.script)
    caller = Caller(on.app(), chat(stream=True))
    await caller.saw("one")
    caller.leave()
    await asyncio.wait_for(caller.task, 5)
    on.assert_idle()
    on.link.script = using(4)
    assert await asked(on) == load(USUAL)


async def test_a_broken_answer_teaches_nothing() -> None:
    on = stage("learned", lost_after("one"))
    async with on.client() as client:
        broken = await client.post(CHAT, json=chat(stream=True, response_format=JSON))
    assert "error" in broken.text
    on.clock.now_s += 1.0
    on.ready("a")
    on.link.script = using(4)
    assert await asked(on) == load(USUAL)


async def test_callers_see_what_they_saw_before() -> None:
    on = stage("learned", using(2))
    async with on.client() as client:
        stream = await client.post(CHAT, json=chat(stream=True, response_format=JSON))
    assert "stream_options" not in on.link.calls[-1][1].body
    assert events(stream.text) == [chunk("hi"), chunk("hi"), "[DONE]"]
    assert all("usage" not in json.loads(event) for event in events(stream.text)[:-1])


async def test_predicted_and_actual_output_are_counted() -> None:
    on = stage("formula", using(40))
    await asked(on)
    await asked(on, max_tokens=20)
    assert on.value("shardwise_predicted_output_tokens_total", pool="main") == USUAL + 20
    assert on.value("shardwise_output_tokens_total", pool="main") == 80
    assert on.value("shardwise_output_ratio_bucket", pool="main", le="2.0") == 1
    assert on.value("shardwise_output_ratio_bucket", pool="main", le="4.0") == 2


@pytest.mark.parametrize("predictor", PREDICTORS)
async def test_gateway_and_simulator_predict_alike(predictor: str) -> None:
    on = stage(predictor, using(40))
    live = [await asked(on) for _ in range(10)]
    rules = GatewayRules(expected_output=USUAL, length_predictor=predictor, batch_wait_s=0.0)
    log = Loads()

    def knows(_: object, *, limit: int | None, room: int) -> LengthFeatures:
        return LengthFeatures(PROMPT, limit, room, source="/chat//")

    one_by_one = [request(10.0 * number, prompt=PROMPT, output=40) for number in range(10)]
    Simulation(setup(pool(), rules=rules), log=log, knows=knows).run(one_by_one)
    assert live == log.seen
