"""What does the way between gateway and engine replica cost, beside a Ray Serve handle?

    python -m bench.link [--quick] [--json FILE]

One Serve replica that answers at once with `TOKENS` replies, called from this process both ways: by
a handle that streams, as Serve's own ingresses do, and over the replica's socket
(`serving.direct_link`). The ratio is direct over handle. Both cores are shared by all parts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

TOKENS = 16
WIDTH = 64
SECRET = "bench"
Ask = Callable[[], Awaitable[None]]


async def _answer(request: Any) -> AsyncIterator[str]:
    del request
    for _ in range(TOKENS):
        yield '{"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}'
        await asyncio.sleep(0)  # each comes by itself, as from an engine


class Speaker:
    """Says the same by handle and by socket."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        from serving.engine.listener import Listener

        self._listener = await Listener.start(_answer, host="127.0.0.1", secret=SECRET)

    def address(self) -> str:
        """Of the socket."""
        return self._listener.address

    async def generate(self, request: Any) -> AsyncIterator[str]:
        """By handle."""
        async for reply in _answer(request):
            yield reply


async def spent_s(ask: Ask, *, count: int, width: int) -> tuple[float, float]:
    """Seconds for all, and the median of one, with `width` at a time."""
    each: list[float] = []

    async def worker() -> None:
        for _ in range(count // width):
            began_s = time.perf_counter()
            await ask()
            each.append(time.perf_counter() - began_s)

    await ask()
    began_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(width)))
    return time.perf_counter() - began_s, median(each)


async def measure(handle: Any, *, quick: bool) -> dict[str, dict[str, float]]:
    """Both ways, one after the other, in this process."""
    from serving.direct_link import DirectLink
    from serving.messages import EngineRequest, ReplicaReport

    request = EngineRequest(kind="chat", body={"stream": True}, request_id="r", tokens=1.0)
    link = DirectLink(secret=SECRET, reach_s=10.0)
    address = await handle.address.remote()
    link.observe(
        [
            ReplicaReport(
                pool="main",
                replica_id="a",
                sent_s=0.0,
                started_s=0.0,
                pid=0,
                address=address,
                running=0,
                waiting=0,
                kv_usage=0.0,
            )
        ]
    )

    async def direct() -> None:
        heard = 0
        async for replies in link.call(request, replica_id="a"):
            heard += len(replies)
        assert heard == TOKENS

    streaming = handle.options(stream=True).generate

    async def by_handle() -> None:
        heard = 0
        async for _ in streaming.remote(request):
            heard += 1
        assert heard == TOKENS

    figures = {}
    for name, ask, count in (("handle", by_handle, 1), ("direct", direct, 10)):
        alone = 16 * count if quick else 100 * count
        _, one_s = await spent_s(ask, count=alone, width=1)
        many = WIDTH * (2 * count if quick else 10 * count)
        all_s, _ = await spent_s(ask, count=many, width=WIDTH)
        figures[name] = {
            "ms_alone": 1e3 * one_s,
            "requests_per_s": many / all_s,
            "tokens_per_s": many * TOKENS / all_s,
        }
    await link.close()
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the work")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])

    import ray
    from ray import serve

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(proxy_location="Disabled")
        speaker = serve.deployment(
            Speaker, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0}
        )
        handle = serve.run(speaker.bind(), name="bench", route_prefix=None)
        figures = asyncio.run(measure(handle, quick=arguments.quick))
    finally:
        serve.shutdown()
        ray.shutdown()
    for name, values in figures.items():
        print(
            f"{name:8} alone {values['ms_alone']:7.2f} ms   {WIDTH} at a time "
            f"{values['requests_per_s']:8,.0f} requests/s {values['tokens_per_s']:10,.0f} tokens/s"
        )
    ratio = figures["direct"]["tokens_per_s"] / figures["handle"]["tokens_per_s"]
    print(f"direct over handle: {ratio:.1f}x the tokens")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
