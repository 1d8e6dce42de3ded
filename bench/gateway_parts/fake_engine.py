"""The engine behind every peer: `python -m bench.gateway_parts.fake_engine --port P --model NAME`.

An OpenAI server that costs next to nothing: its answers are bytes made before the first request,
and of a request nothing is parsed that need not be. Routers that look for a vLLM server find its
list of models, its health and the metrics they read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

from bench.gateway_parts.answers import CHAT, COMPLETIONS, TOKENS, Kind, pace_s, streams

_METRICS = b"""\
vllm:num_requests_running{model_name="fake"} 0
vllm:num_requests_waiting{model_name="fake"} 0
vllm:kv_cache_usage_perc{model_name="fake"} 0
"""
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def response(body: bytes, *, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def _chunk(event: str) -> bytes:
    payload = f"data: {event}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(payload), payload)


@dataclass(frozen=True)
class Answers:
    """One endpoint's, ready to be sent. `events`: the last one ends the stream."""

    whole: bytes
    events: Sequence[bytes]
    stream: bytes

    @classmethod
    def of(cls, kind: Kind, model: str) -> Answers:
        """As `kind` writes them."""
        *events, last = [_chunk(event) for event in kind.events(model)]
        events.append(last + _chunk("[DONE]") + b"0\r\n\r\n")
        whole = response(json.dumps(kind.whole(model)).encode())
        return cls(whole, events, b"".join([_STREAM_HEAD, *events]))


class Site:
    """What is answered under which path."""

    def __init__(self, model: str) -> None:
        card = {"id": model, "object": "model", "created": 0, "owned_by": "bench"}
        about = {"object": "list", "data": [card], "model_path": model, "status": "ok"}
        self.about = response(json.dumps(about).encode())
        self.metrics = response(_METRICS, kind=b"text/plain")
        self.answers = {
            b"/v1/chat/completions": Answers.of(CHAT, model),
            b"/v1/completions": Answers.of(COMPLETIONS, model),
        }


class Connection(asyncio.Protocol):
    """One client's, and the request that comes on it."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        """The parser's: one begins."""
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        """The parser's: part of its path."""
        self._url += url

    def on_body(self, body: bytes) -> None:
        """The parser's: part of its body."""
        self._body += body

    def on_message_complete(self) -> None:
        """The parser's: it is whole."""
        answers = self._site.answers.get(self._url)
        if answers is None:
            asked = self._url.startswith(b"/metrics")
            self._transport.write(self._site.metrics if asked else self._site.about)
            return
        token_s = pace_s(self._body)
        if not streams(self._body):
            self._send_after(TOKENS * token_s, answers.whole)
        elif token_s == 0:
            self._transport.write(answers.stream)
        else:
            self._transport.write(_STREAM_HEAD)
            # A chat's first event, with the role, comes with the first token.
            ahead = len(answers.events) - TOKENS
            for index, event in enumerate(answers.events):
                self._send_after(token_s * max(1, index - ahead + 1), event)

    def _send_after(self, wait_s: float, data: bytes) -> None:
        if wait_s == 0:
            self._transport.write(data)
        else:
            self._loop.call_later(wait_s, self._send, data)

    def _send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


async def serve(port: int, site: Site) -> asyncio.Server:
    """Answer on a port of this machine's own."""
    loop = asyncio.get_running_loop()
    return await loop.create_server(lambda: Connection(site), "127.0.0.1", port)


async def _serve_forever(port: int, site: Site) -> None:
    await (await serve(port, site)).serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    arguments = parser.parse_args()
    uvloop.run(_serve_forever(arguments.port, Site(arguments.model)))


if __name__ == "__main__":
    main()
