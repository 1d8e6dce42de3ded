"""What does the way from a caller to a gateway replica cost? Ray Serve's two ways, and our own.

    python -m bench.entry [--quick] [--json FILE]

One Serve replica that answers at once with 16 events, asked by callers on this machine through

    proxy      Serve's proxy process, a message for each event
    haproxy    HAProxy, started by Serve, and an HTTP server that Serve runs in the replica
    own port   an HTTP server of the replica's own (`serving.entry`)

Both cores are shared by callers and answerers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench.gateway_parts.answers import CHAT, question
from bench.gateway_parts.load import Target, percentile, press
from bench.gateway_parts.process import free_port, module, own_environment, running

WAYS = ("proxy", "haproxy", "own port")
WIDTH = 64


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The sixteen events, each by itself; to another request that all is well."""
    if scope["method"] == "POST":
        await receive()
        events = [f"data: {event}\n\n".encode() for event in [*CHAT.events("m"), "[DONE]"]]
        kind = b"text/event-stream"
    else:
        events, kind = [b'{"data": [{"id": "m"}]}'], b"application/json"
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events:
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def ingress(port: int | None) -> Any:
    """A Serve application that answers; on a port of its own, or as Serve's ingress."""
    from fastapi import FastAPI
    from ray import serve

    from serving.entry import HttpEntry

    class Answering:
        async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
            if port is not None:
                self._entry = await HttpEntry.open(
                    answer, host="127.0.0.1", port=port, node="127.0.0.1", application="bench"
                )

    app = FastAPI()
    app.mount("/", answer)
    made: Callable[[Any], Any] = serve.ingress(app) if port is None else lambda plain: plain
    return serve.deployment(
        made(Answering), max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0}
    ).bind()


def serve_until_ended(way: str, port: int) -> None:
    """What the process that answers does."""
    if way == "haproxy":
        os.environ["RAY_SERVE_ENABLE_HA_PROXY"] = "1"
    import ray
    from ray import serve

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        own = way == "own port"
        if own:
            serve.start(proxy_location="Disabled")
        else:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(ingress(port if own else None), name="bench", route_prefix=None if own else "/")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()


async def measure(target: Target, *, quick: bool) -> dict[str, float]:
    """One caller, then many."""
    body, seconds = question(target.model, stream=True), 1.5 if quick else 5.0
    alone = await press(target, body, width=1, seconds=seconds, warm_s=0.5)
    many = await press(target, body, width=WIDTH, seconds=seconds, warm_s=0.5)
    for tally in (alone, many):
        assert not tally.failures, tally.failures
    return {
        "ms_alone": 1e3 * percentile(alone.last_s, 0.5),
        "requests_per_s": many.requests_per_s,
        "tokens_per_s": many.tokens_per_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--serve", nargs=2, metavar=("WAY", "PORT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve_until_ended(arguments.serve[0], int(arguments.serve[1]))
        return
    figures: dict[str, dict[str, float]] = {}
    for way in WAYS:
        target = Target(port=free_port(), model="m")
        command = module("bench.entry", "--serve", way, str(target.port))
        with (
            tempfile.TemporaryDirectory() as directory,
            running(
                command,
                target=target,
                environment=own_environment(),
                log=Path(directory) / "log",
            ) as answering,
        ):
            figure = uvloop.run(measure(answering, quick=arguments.quick))
        figures[way] = figure
        print(
            f"{way:9} alone {figure['ms_alone']:6.2f} ms   {WIDTH} at a time "
            f"{figure['requests_per_s']:8,.0f} requests/s {figure['tokens_per_s']:10,.0f} tokens/s"
        )
    ratio = figures["own port"]["tokens_per_s"] / figures["proxy"]["tokens_per_s"]
    print(f"own port over proxy: {ratio:.1f}x the tokens")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
