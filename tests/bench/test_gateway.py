from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import gateway
from bench.gateway_parts.answers import CHAT, TOKENS, WORD, question
from bench.gateway_parts.fake_engine import Answers, Site, response, serve
from bench.gateway_parts.load import Count, Tally, Target, percentile, press
from bench.gateway_parts.measure import Reading, loads
from bench.gateway_parts.profile import Profile
from bench.gateway_parts.table import ENGINE, OURS, Results
from serving.messages import DONE, EngineRequest
from serving.resumption import with_ids
from serving.transcript import Transcript

MODEL = "fake"
CHAT_PATH = b"/v1/chat/completions"
PAYLOADS = [f"data: {event}\n\n" for event in [*CHAT.events(MODEL), DONE]]


@asynccontextmanager
async def engine(change: Callable[[Answers], Answers] = lambda same: same) -> AsyncIterator[Target]:
    """A fake engine on a free port."""
    site = Site(MODEL)
    site.answers[CHAT_PATH] = change(site.answers[CHAT_PATH])
    server = await serve(0, site)
    try:
        yield Target(port=server.sockets[0].getsockname()[1], model=MODEL)
    finally:
        server.close()
        await server.wait_closed()


async def asked(target: Target, *, stream: bool, pace_ms: int = 0) -> Tally:
    body = question(MODEL, stream=stream, pace_ms=pace_ms)
    return await press(target, body, width=3, seconds=0.3, spread_s=0.01)


@pytest.mark.parametrize("pace_ms", [0, 1])
async def test_every_event_and_byte_of_a_stream_is_counted(pace_ms: int):
    async with engine() as target:
        tally = await asked(target, stream=True, pace_ms=pace_ms)
    answers = len(tally.last_s)
    assert answers > 0
    assert not tally.failures
    assert tally.events == answers * len(PAYLOADS)
    assert tally.tokens == answers * TOKENS
    assert tally.body_bytes == answers * len("".join(PAYLOADS))
    assert all(first <= last for first, last in zip(tally.first_s, tally.last_s, strict=True))


async def test_an_answer_that_is_not_streamed_has_the_same_tokens():
    async with engine() as target:
        tally = await asked(target, stream=False)
    answers = len(tally.last_s)
    assert answers > 0
    assert not tally.failures
    assert (tally.events, tally.tokens) == (0, answers * TOKENS)
    assert tally.body_bytes == answers * len(json.dumps(CHAT.whole(MODEL)))


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        (response(WORD.encode() * (TOKENS - 1)), f"{TOKENS - 1} tokens instead of {TOKENS}"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy", "status 503: busy"),
    ],
)
async def test_an_answer_that_lacks_a_token_is_a_failure(whole: bytes, why: str):
    async with engine(lambda answers: replace(answers, whole=whole)) as target:
        tally = await asked(target, stream=False)
    assert not tally.last_s
    assert set(tally.failures) == {why}


async def test_a_server_that_is_gone_is_a_failure():
    async with engine() as target:
        pass
    tally = await asked(target, stream=True)
    assert not tally.last_s
    assert all("no connection" in why for why in tally.failures)


async def test_our_gateway_is_told_what_the_peers_are_told():
    replica = pytest.importorskip("bench.gateway_parts.fake_replica")
    body = json.loads(question(MODEL, stream=True))
    request = with_ids(EngineRequest(kind="chat", body=body, request_id="1", tokens=1.0))
    replies = [reply async for reply in replica.FakeEngine().generate(request)]
    transcript = Transcript(lambda _: "")
    told = transcript.hear(replies)
    assert [f"data: {reply}\n\n" for reply in told] == PAYLOADS
    assert len(transcript.tokens) == TOKENS


@given(st.lists(st.sampled_from([b"da", b"ta:", b"data:", b"x", b"", b"data"])))
def test_what_is_cut_into_pieces_is_counted_once(pieces: list[bytes]):
    count = Count(b"data:")
    for piece in pieces:
        count.feed(piece)
    assert count.seen == b"".join(pieces).count(b"data:")


@given(st.lists(st.floats(0, 1e3), min_size=1), st.sampled_from([0.5, 0.99, 1.0]))
def test_no_more_than_the_rest_is_above_a_percentile(values: list[float], share: float):
    found = percentile(values, share)
    assert found in values
    assert sum(value > found for value in values) <= (1 - share) * len(values) + 1e-9


def reading(*, rate: float, last_s: float) -> Reading:
    return Reading(
        requests=100,
        requests_per_s=rate,
        tokens_per_s=rate * TOKENS,
        first_p50_s=last_s / 2,
        first_p99_s=last_s,
        last_p50_s=last_s,
        last_p99_s=2 * last_s,
        cpu_s=0.001,
        elsewhere_cores=0.0,
        failed=0,
        failure="",
    )


def results() -> Results:
    names = loads(quick=True)
    return Results(
        readings={
            ENGINE: dict.fromkeys(names, reading(rate=9000, last_s=0.001)),
            OURS: dict.fromkeys(names, reading(rate=3000, last_s=0.002)),
            "peer": dict.fromkeys(names, reading(rate=600, last_s=0.011)),
        },
        missing={"other": "cannot be installed"},
    )


def test_a_gateway_adds_what_it_takes_over_the_bare_engine():
    assert results().added_s("peer", "one", "last_p50") == pytest.approx(0.010)
    assert results().added_s(ENGINE, "one", "last_p50") is None


def test_a_ratio_is_ours_over_the_peers():
    assert results().ratio("peer", "whole") == pytest.approx(5.0)
    assert results().ratio(OURS, "whole") is None


def test_the_table_has_a_row_for_each_gateway_and_a_reason_for_each_missing():
    text = results().text()
    rows = [row for row in text.splitlines() if row.startswith("|")]
    assert len({len(row) for row in rows[:5]}) == 1
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    (peer,) = [row for row in cells[:5] if row[0] == "peer"]
    assert dict(zip(cells[0], peer, strict=True))["tokens/s"] == "9,600"
    assert "not measured: other: cannot be installed" in text


def test_failed_requests_are_in_the_text():
    some = replace(reading(rate=1, last_s=1), failed=3, failure="status 503: busy")
    text = Results(readings={OURS: {"one": some}}, missing={}).text()
    assert "failed: shardwise one: 3 requests, most of them: status 503: busy" in text


def test_the_document_holds_what_the_table_shows():
    document = results().document()
    assert document["not_measured"] == {"other": "cannot be installed"}
    whole = document["gateways"]["peer"]["whole"]
    assert whole["requests_per_s"] == 600
    assert whole["ours_over_this"] == pytest.approx(5.0)
    assert json.loads(json.dumps(document)) == document


def test_the_bare_engine_is_always_measured_and_a_wrong_name_is_refused():
    assert list(gateway.chosen("litellm")) == [ENGINE, "litellm"]
    with pytest.raises(ValueError, match="unknown: lightllm; there are engine, shardwise"):
        gateway.chosen("lightllm")


def test_a_profile_holds_the_shares_of_the_event_loop_alone():
    loop = "Thread.run (threading.py:982);_run_user_code_event_loop (ray/replica.py:3746)"
    profile = Profile.of(
        [
            f"{loop};admit (serving/service.py:7);encode (/a/serving/tokens.py:58) 3",
            f"{loop};admit (serving/service.py:9) 1",
            "main_loop (ray/worker.py:1069) 96",
        ]
    )
    assert profile.samples == 4
    assert profile.under["admit (serving/service.py)"] == 4
    assert profile.inside["encode (serving/tokens.py)"] == 3
    assert " 75.0 %  encode (serving/tokens.py)" in profile.text()
