"""The connection between gateway and engine replica, over real sockets on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import wire
from serving.direct_link import DirectLink
from serving.engine.listener import Listener
from serving.messages import EngineError, EngineReply, EngineRequest
from serving.replica_link import LinkError
from tests.serving.fakes import report

SECRET = "open sesame"
Generate = Callable[[EngineRequest], AsyncIterator[EngineReply]]


def request(**body: Any) -> EngineRequest:
    return EngineRequest(kind="chat", body=body, request_id="r", tokens=7.5)


class Engine:
    """Says `words`, then waits for the gate if there is one; remembers who is there."""

    def __init__(self, *words: EngineReply, gated: bool = False) -> None:
        self.words, self.gate = words, asyncio.Event()
        self.seen: list[EngineRequest] = []
        self.running = 0
        if not gated:
            self.gate.set()

    async def generate(self, request: EngineRequest) -> AsyncIterator[EngineReply]:
        self.seen.append(request)
        self.running += 1
        try:
            for word in self.words:
                yield word
                await asyncio.sleep(0)
            await self.gate.wait()
            yield "[DONE]"
        finally:
            self.running -= 1


@contextlib.asynccontextmanager
async def pair(
    generate: Generate, *, secret: str = SECRET, **options: Any
) -> AsyncIterator[tuple[Listener, DirectLink]]:
    listener = await Listener.start(generate, host="127.0.0.1", secret=SECRET)
    link = DirectLink(secret=secret, reach_s=2.0, **options)
    link.observe([replace(report("a", sent_s=0.0), address=listener.address)])
    try:
        yield listener, link
    finally:
        await link.close()
        await listener.close()


async def said(link: DirectLink, asked: EngineRequest | None = None) -> list[EngineReply]:
    found: list[EngineReply] = []
    async for replies in link.call(asked or request(), replica_id="a"):
        found += replies
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_request_arrives_and_its_replies_come_back_in_order() -> None:
    words: list[EngineReply] = [f"word {i}" for i in range(1000)]
    engine = Engine(*words)
    asked = request(stream=True, messages=[{"role": "user", "content": "ü\n"}], top_p=0.5, n=None)
    async with pair(engine.generate) as (listener, link):
        assert await said(link, asked) == [*words, "[DONE]"]
        assert listener.calls == 0
    assert engine.seen == [asked]


async def test_whole_answers_and_errors_travel_too() -> None:
    whole = {"id": "x", "choices": [{"index": 0, "logprobs": None, "text": "é", "p": -0.25}]}
    error = EngineError(status=400, message="no", retryable=False)
    async with pair(Engine(whole, error).generate) as (_, link):
        assert await said(link) == [whole, error, "[DONE]"]


async def test_many_calls_share_one_connection() -> None:
    async def echo(request: EngineRequest) -> AsyncIterator[EngineReply]:
        for i in range(20):
            yield f"{request.body['who']}.{i}"
            await asyncio.sleep(0)

    async with pair(echo) as (listener, link):
        answers = await asyncio.gather(*(said(link, request(who=who)) for who in range(100)))
        assert len(listener._gateways) == 1
    for who, answer in enumerate(answers):
        assert answer == [f"{who}.{i}" for i in range(20)]


def test_serves_event_loop_carries_it_too() -> None:
    uvloop = pytest.importorskip("uvloop")  # what Ray Serve runs its replicas in

    async def ask() -> list[EngineReply]:
        async with pair(Engine("first").generate) as (_, link):
            return await said(link)

    assert uvloop.run(ask()) == ["first", "[DONE]"]


async def test_the_first_reply_comes_while_the_engine_still_works() -> None:
    engine = Engine("first", gated=True)
    async with pair(engine.generate) as (_, link):
        replies = link.call(request(), replica_id="a")
        assert await anext(replies) == ["first"]
        assert engine.running == 1
        engine.gate.set()
        assert [batch async for batch in replies] == [["[DONE]"]]


async def test_a_call_that_is_closed_ends_in_the_engine() -> None:
    engine = Engine("first", gated=True)
    async with pair(engine.generate) as (listener, link):
        replies = link.call(request(), replica_id="a")
        await anext(replies)
        await replies.aclose()  # type: ignore[attr-defined]
        await until(lambda: engine.running == 0 and listener.calls == 0)


async def test_a_call_that_is_cancelled_at_once_leaves_nothing() -> None:
    engine = Engine("first", gated=True)
    async with pair(engine.generate) as (listener, link):
        for pause_s in (0.0, 0.0, 0.001, 0.01):
            task = asyncio.create_task(said(link))
            await asyncio.sleep(pause_s)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: engine.running == 0 and listener.calls == 0)
        engine.gate.set()
        assert await said(link) == ["first", "[DONE]"]


async def test_a_lost_replica_is_an_error_after_what_it_has_said() -> None:
    engine = Engine("first", "second", gated=True)
    async with pair(engine.generate) as (listener, link):
        replies = link.call(request(), replica_id="a")
        heard = list(await anext(replies))
        closing = asyncio.create_task(listener.close())
        with pytest.raises(LinkError, match="replica a was lost"):
            async for batch in replies:
                heard += batch
        assert heard == ["first", "second"]
        await closing
        with pytest.raises(LinkError, match="replica a cannot be reached"):
            await said(link)


async def test_the_engine_forgets_the_calls_of_a_lost_gateway() -> None:
    engine = Engine("first", gated=True)
    async with pair(engine.generate) as (listener, link):
        replies = [link.call(request(), replica_id="a") for _ in range(3)]
        for reply in replies:
            await anext(reply)
        assert engine.running == 3
        await link.close()
        await until(lambda: engine.running == 0 and listener.calls == 0)


async def test_a_replica_that_came_back_is_connected_again() -> None:
    async with pair(Engine("one").generate) as (first, link):
        assert await said(link) == ["one", "[DONE]"]
        await first.close()
        second = await Listener.start(Engine("two").generate, host="127.0.0.1", secret=SECRET)
        link.observe([replace(report("a", sent_s=0.0), address=second.address)])
        await until(lambda: not link._lines)
        assert await said(link) == ["two", "[DONE]"]
        await link.close()
        await second.close()


async def test_who_does_not_know_the_secret_gets_nothing() -> None:
    engine = Engine("first")
    async with pair(engine.generate, secret="guess") as (_, link):
        with pytest.raises(LinkError, match="cannot be reached"):
            await said(link)
    assert not engine.seen


@pytest.mark.parametrize(
    "sent",
    [
        wire.encoded(wire.Call(1, "chat", {}, "r", 1.0)),
        wire.encoded(wire.Proof(b"x" * 32, b"y")),
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x02hi",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_stranger_is_turned_away(sent: bytes) -> None:
    engine = Engine("first")
    async with pair(engine.generate) as (listener, link):
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(5):
                await reader.read()
        writer.close()
        assert not engine.seen
        assert await said(link) == ["first", "[DONE]"]


async def test_a_replica_without_the_secret_is_not_believed() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.encoded(wire.Hello(b"n" * 16)))
        await reader.read(10)
        writer.write(wire.encoded(wire.Welcome(b"d" * 32)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    link = DirectLink(secret=SECRET, reach_s=2.0)
    port = server.sockets[0].getsockname()[1]
    link.observe([replace(report("a", sent_s=0.0), address=f"127.0.0.1:{port}")])
    with pytest.raises(LinkError, match="does not know the secret"):
        await said(link)
    await link.close()
    server.close()


async def test_a_reader_that_falls_behind_holds_up_nobody_and_loses_nothing() -> None:
    words: list[EngineReply] = [f"{i}" for i in range(10 * wire.WINDOW)]
    async with pair(Engine(*words).generate) as (listener, link):
        slow = link.call(request(), replica_id="a")
        heard = list(await anext(slow))
        for _ in range(3):
            assert await said(link) == [*words, "[DONE]"]
        await until(lambda: listener.calls == 0)
        (gateway,) = listener._gateways.values()
        (answer,) = gateway.answers.values()
        assert len(heard) + wire.WINDOW + len(answer.waiting) >= len(words)
        assert len(answer.waiting) > 5 * wire.WINDOW, "more was sent than the credit allows"
        async for batch in slow:
            heard += batch
        assert heard == [*words, "[DONE]"]
        assert not gateway.answers


async def test_a_process_that_stands_still_is_lost_and_a_busy_one_is_not() -> None:
    engine = Engine("first", gated=True)
    async with pair(engine.generate, ping_s=0.02, silent_s=0.1) as (listener, link):
        replies = link.call(request(), replica_id="a")
        await anext(replies)
        rest = asyncio.ensure_future(anext(replies))
        await asyncio.sleep(0.3)
        assert not rest.done(), "it answers pings: it is there, whatever its engine does"
        listener._take = lambda *_: None  # type: ignore[method-assign, assignment]
        for connection in listener._gateways:
            connection._take = lambda *_: None  # it has stopped
        with pytest.raises(LinkError, match=r"said nothing for 0\.1 s"):
            await rest


async def test_a_leaving_replica_finishes_what_it_has_begun_and_takes_no_more() -> None:
    engine, left = Engine("first", gated=True), []
    async with pair(engine.generate, left=left.append) as (listener, link):
        replies = link.call(request(), replica_id="a")
        await anext(replies)
        leaving = asyncio.create_task(listener.leave())
        await until(lambda: left == ["a"])
        (refusal,) = await said(link)
        assert isinstance(refusal, EngineError)
        assert refusal.retryable
        assert not leaving.done()
        engine.gate.set()
        assert [batch async for batch in replies] == [["[DONE]"]]
        async with asyncio.timeout(5):
            await leaving


async def test_a_failure_of_the_engine_is_told() -> None:
    async def broken(request: EngineRequest) -> AsyncIterator[EngineReply]:
        yield "first"
        raise RuntimeError("out of paper")

    async with pair(broken) as (listener, link):
        *before, error = await said(link)
        assert before == ["first"]
        assert error == EngineError(
            status=500, message="RuntimeError: out of paper", retryable=True
        )
        assert listener.calls == 0


async def test_an_unknown_replica_cannot_be_reached() -> None:
    link = DirectLink(secret=SECRET, reach_s=1.0)
    with pytest.raises(LinkError, match="has not said where it is"):
        await said(link)


def test_a_call_of_an_end_that_knows_of_no_traces_is_understood_and_the_other_way_round() -> None:
    asked = request(stream=True)
    call = wire.call_of(1, replace(asked, trace={"traceparent": "x"}))
    whole = msgspec.msgpack.decode(wire.encoded(call)[4:])
    before = msgspec.msgpack.encode(whole[:-1])
    assert wire.FROM_GATEWAY.decode(before).request() == asked
    to_come = msgspec.msgpack.encode([*whole, "more"])
    assert wire.FROM_GATEWAY.decode(to_come).request() == replace(asked, trace=call.trace)


REPLIES = st.lists(
    st.text()
    | st.dictionaries(st.text(), st.none() | st.integers(-(2**53), 2**53) | st.text())
    | st.builds(
        EngineError, status=st.integers(100, 599), message=st.text(), retryable=st.booleans()
    )
)


@settings(deadline=None)
@given(st.lists(REPLIES, max_size=5), st.data())
def test_frames_are_read_however_they_are_cut(batches: list[Any], data: st.DataObject) -> None:
    sent = b"".join(wire.encoded(wire.Replies(7, wire.packed(batch))) for batch in batches)
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=10))
    edges = [0, *sorted(cuts), len(sent)]
    taken: list[Any] = []
    connection = wire.Connection(
        wire.FROM_REPLICA,
        take=lambda _, frame: taken.append(frame),
        lost=lambda *_: None,
    )
    connection._transport = object()  # type: ignore[assignment]
    for start, end in itertools.pairwise(edges):
        connection.data_received(sent[start:end])
    assert [wire.unpacked(frame.replies) for frame in taken] == batches
    assert connection.heard == len(batches)
    assert not connection._buffer


async def test_an_answer_no_frame_holds_is_refused_and_hurts_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large, small = Engine("x" * 5000), Engine("small")

    async def generate(asked: EngineRequest) -> AsyncIterator[EngineReply]:
        engine = large if asked.body.get("large") else small
        async for reply in engine.generate(asked):
            yield reply

    async with pair(generate) as (_, link):
        assert await said(link) == ["small", "[DONE]"]
        monkeypatch.setattr(wire, "MOST_BYTES", 2000)
        refusal, *_ = await said(link, request(large=True))
        assert isinstance(refusal, EngineError)
        assert (refusal.status, refusal.retryable) == (400, False)
        assert "Ask for less" in refusal.message
        assert await said(link) == ["small", "[DONE]"]


async def test_calls_on_a_replica_that_is_ended_fail_now_and_none_reaches_it_again() -> None:
    engine = Engine("one", gated=True)
    async with pair(engine.generate) as (_, link):
        calling = asyncio.create_task(said(link))
        await until(lambda: engine.running == 1)
        link.lose(["a", "unknown"])
        with pytest.raises(LinkError, match="it is being ended"):
            await calling
        with pytest.raises(LinkError, match="has not said where it is"):
            await said(link)
