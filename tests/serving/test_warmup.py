from __future__ import annotations

from collections.abc import AsyncIterator

from serving.engine.warmup import warm_up
from serving.messages import EngineError, EngineReply, EngineRequest, Warmup

BEGINNINGS = Warmup(system_prompts=("Be brief.", "Be kind."), prompts=("Once upon a time",))


class Engine:
    """Answers, but for the request of this number."""

    def __init__(self, *, fails_at: int = -1, error: Exception | EngineError | None = None) -> None:
        self.asked: list[EngineRequest] = []
        self._fails_at, self._error = fails_at, error

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        self.asked.append(request)
        if len(self.asked) - 1 == self._fails_at:
            if isinstance(self._error, Exception):
                raise self._error
            assert self._error is not None
            yield self._error
            return
        yield {"choices": []}


async def test_every_beginning_is_asked_for_with_one_token() -> None:
    engine = Engine()
    assert await warm_up(engine.generate, BEGINNINGS, model="m") == 3
    assert [request.kind for request in engine.asked] == ["chat", "chat", "completions"]
    assert engine.asked[1].body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert engine.asked[2].body["prompt"] == "Once upon a time"
    assert all(request.body["max_tokens"] == 1 for request in engine.asked)


async def test_what_fails_keeps_nothing_from_starting() -> None:
    for error in (RuntimeError("no"), EngineError(status=400, message="no", retryable=False)):
        engine = Engine(fails_at=1, error=error)
        assert await warm_up(engine.generate, BEGINNINGS, model="m") == 2
        assert len(engine.asked) == 3


async def test_without_beginnings_nothing_is_asked() -> None:
    engine = Engine()
    assert await warm_up(engine.generate, Warmup(), model="m") == 0
    assert engine.asked == []
