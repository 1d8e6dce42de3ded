"""A replica that leaks is drained and replaced under load, and nobody's request fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.live.decided import decided, main_pool, replicas
from tests.live.instance import FAST_STEERING, until
from tests.live.leaking_engine import RATE, leak_file
from tests.live.scripted_engine import Pace, said, text
from tests.live.scripted_instance import MODEL, ScriptedInstance, scripted_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

HEAD = "from tests.live.leaking_replica import run_head; run_head()"
CALLERS = 12
BOUNDS = {"minimum": 2, "initial": 2, "maximum": 3}
STEERING = FAST_STEERING | {
    "leaks": {
        "warmup_s": 2.0,
        "window_s": 20.0,
        "slope_bytes_per_h": RATE * 3600.0 / 4.0,
        "drain_s": 60.0,
        "rest_s": 10.0,
    },
    "keeper": {"look_s": 1.0},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    home = tmp_path_factory.mktemp("home")
    with scripted_instance(home, replicas=BOUNDS, steering=STEERING, head=HEAD) as instance:
        yield instance


async def caller(client: httpx.AsyncClient, number: int, stop: asyncio.Event) -> list[str]:
    """Asks until told to stop; what went wrong, in words."""
    wrong: list[str] = []
    while not stop.is_set():
        body = {
            "model": MODEL,
            "prompt": f"{number}",
            "max_tokens": 20,
            "stream": number % 2 == 0,
            "user": Pace(prefill_s=0.1, token_s=0.1).user(),
        }
        response = await client.post("/v1/completions", json=body)
        if response.status_code != 200:
            wrong.append(f"{response.status_code}: {response.text[:200]}")
        elif (heard := answer(response)) != text(said([ord(c) for c in f"{number}"], 20)):
            wrong.append(heard)
    return wrong


def answer(response: httpx.Response) -> str:
    if not response.headers["content-type"].startswith("text/event-stream"):
        return str(response.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return "".join(
        choice["text"]
        for event in events
        if event != "[DONE]"
        for choice in json.loads(event).get("choices", [])
    )


async def test_a_replica_that_leaks_is_replaced_and_nobody_notices(
    service: ScriptedInstance,
) -> None:
    before = {r["replica_id"]: r for r in service.status()["replicas"]}
    victim = next(iter(before.values()))
    leak = leak_file(service.state.directory, victim["pid"])
    stop = asyncio.Event()
    started_s = time.monotonic()

    def replaced() -> bool:
        names = replicas(service)
        return victim["replica_id"] not in names and main_pool(service).get("ready") == 3

    async with httpx.AsyncClient(base_url=service.url, timeout=120.0) as client:
        calls = [asyncio.create_task(caller(client, i, stop)) for i in range(CALLERS)]
        try:
            leak.touch()
            await asyncio.to_thread(
                until,
                lambda: bool(decided(service, "retire")),
                limit_s=150,
                what="it is found",
            )
            print(f"found after {time.monotonic() - started_s:.0f} s")
            await asyncio.to_thread(until, replaced, limit_s=150, what="it is replaced")
            print(f"replaced after {time.monotonic() - started_s:.0f} s")
            await asyncio.to_thread(
                until, lambda: main_pool(service).get("target") == 2, limit_s=90, what="given back"
            )
        finally:
            stop.set()
            wrong = [each for heard in await asyncio.gather(*calls) for each in heard]
    assert wrong == []
    (retired,), (restarted,) = (decided(service, action) for action in ("retire", "restart"))
    print(retired["reason"], retired["numbers"])
    assert retired["subject"] == restarted["subject"] == victim["replica_id"]
    assert [d["value"] for d in decided(service, "scale")] == [3, 2]
    assert service.metric("shardwise_retired_replicas") == 1
    assert service.metric("shardwise_broken_streams_total") == 0
    assert service.command("replay", str(service.state.decisions_path)).returncode == 0
