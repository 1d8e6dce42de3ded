"""A caller's own time limit, at the HTTP edge: what is late is taken back, wherever it is."""

from __future__ import annotations

import httpx
import pytest

from tests.serving.fakes import FakeLink, Gate, Stage, chat, events

CHAT = "/v1/chat/completions"


async def ask(on: Stage, timeout: str, *, stream: bool = True) -> httpx.Response:
    async with on.client() as client:
        headers = {"X-Request-Timeout-Seconds": timeout}
        return await client.post(CHAT, json=chat(stream=stream), headers=headers)


def stage(gate: Gate | None = None, *, ready: bool = True) -> Stage:
    made = Stage(link=FakeLink() if gate is None else FakeLink(gate.script))
    made.ready(*(["a"] if ready else []))
    return made


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", ""])
async def test_a_limit_that_is_none_is_refused(value: str) -> None:
    refused = await ask(stage(), value)
    assert refused.status_code == 400
    assert "X-Request-Timeout-Seconds" in refused.json()["error"]["message"]


async def test_an_answer_in_time_is_as_without_a_limit() -> None:
    on = stage()
    assert events((await ask(on, "30")).text)[-1] == "[DONE]"
    assert (await ask(on, "30", stream=False)).status_code == 200
    on.assert_idle()


async def test_what_waits_in_line_for_too_long_leaves_it() -> None:
    on = stage(ready=False)
    late = await ask(on, "0.05")
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    on.assert_idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_what_has_not_begun_in_time_is_taken_from_the_engine(stream: bool) -> None:
    on = stage(Gate())
    late = await ask(on, "0.05", stream=stream)
    assert late.status_code == 504
    on.assert_idle()


async def test_a_stream_that_takes_too_long_ends_with_the_reason() -> None:
    on = stage(Gate("begun"))
    said = events((await ask(on, "0.2")).text)
    assert "begun" in said[0]
    assert "X-Request-Timeout-Seconds" in said[-1]
    on.assert_idle()
