"""From one rank to two under load, with real engines: nothing is lost, streams are whole.

The model is tiny and random; what it says at temperature 0 is asked of each layout alone.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live.instance import LiveInstance, free_port, link_models, until, write_config
from tests.live.tiny_instance import make_tiny_model

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

PROMPTS = ["one two three", "the cat sat on", "a long way to", "once upon a time"]
TOKENS = 40


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveInstance]:
    """One rank on a cluster with room for three."""
    folder = tmp_path_factory.mktemp("replan")
    model = folder / "tiny"
    make_tiny_model(model)
    instance = LiveInstance(folder / "home", free_port())
    instance.home.mkdir()
    link_models(instance.home)
    plan = folder / "plan.json"
    planned = instance.command(
        *("plan", "--model", str(model), "--served-name", "tiny", "--cluster", "1x2xcpu"),
        *("--isl", "64", "--osl", "32", "--max-model-len", "256", "--out", str(plan)),
    )
    assert planned.returncode == 0, planned.stderr
    with_layout(plan, plan, tp=1, maximum=3)
    steering = {"mode": "advisory"}  # one replica under any load: only layouts change here
    config = write_config(folder / "serve.yaml", port=instance.port, steering=steering)
    try:
        up = instance.command("up", str(plan), "--config", str(config), timeout_s=420.0)
        assert up.returncode == 0, up.stdout + up.stderr
        yield instance
    finally:
        down = instance.command("down")
    assert down.returncode == 0


def with_layout(source: Path, target: Path, *, tp: int, maximum: int, **engine_args: Any) -> Path:
    plan = json.loads(source.read_text())
    pool = plan["pools"][0]
    pool["layout"].update(tp=tp, moe_tp=tp, pp=1, max_num_seqs=4)
    pool["engine_args"].update(
        tensor_parallel_size=tp, pipeline_parallel_size=1, max_num_seqs=4, enforce_eager=True
    )
    pool["engine_args"].update(engine_args)
    pool["replicas"] = {"minimum": 1, "initial": 1, "maximum": maximum}
    target.write_text(json.dumps(plan))
    return target


def running_plan(served: LiveInstance) -> Path:
    return served.home / "instance" / "plan.json"


async def answer(client: httpx.AsyncClient, prompt: str, *, stream: bool) -> str:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": TOKENS if stream else 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return str(response.json()["choices"][0]["text"])
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]", response.text
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def said_alone(served: LiveInstance) -> dict[str, str]:
    """What the layout in force says to each prompt, asked one by one."""

    async def ask() -> dict[str, str]:
        async with httpx.AsyncClient(base_url=served.url, timeout=120.0) as client:
            return {prompt: await answer(client, prompt, stream=True) for prompt in PROMPTS}

    return asyncio.run(ask())


class Callers:
    """A stream after the other for each prompt, and short requests between."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, False
        self.answers: list[tuple[str, str]] = []
        self.short = 0
        self.lost: list[str] = []

    def stop(self) -> None:
        self._stop = True

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=180.0) as client:
            await asyncio.gather(*(self._ask_on(client, prompt) for prompt in PROMPTS))

    async def _ask_on(self, client: httpx.AsyncClient, prompt: str) -> None:
        while not self._stop:
            try:
                self.answers.append((prompt, await answer(client, prompt, stream=True)))
                await answer(client, prompt, stream=False)
                self.short += 1
            except (httpx.HTTPError, AssertionError) as error:
                self.lost.append(repr(error))


@contextmanager
def under_load(served: LiveInstance) -> Iterator[Callers]:
    callers = Callers(served.url)
    thread = threading.Thread(target=callers.run)
    thread.start()
    try:
        until(lambda: callers.short >= len(PROMPTS), limit_s=120, what="callers are answered")
        yield callers
        before = len(callers.answers)
        until(
            lambda: len(callers.answers) > before + len(PROMPTS), limit_s=120, what="they still are"
        )
    finally:
        callers.stop()
        thread.join(timeout=180)
    print(f"{len(callers.answers)} streams, {callers.short} short, {len(callers.lost)} lost")
    assert callers.lost == []


def layout(served: LiveInstance) -> str:
    return str(served.status()["replan"]["layouts"]["main"])


def test_an_engine_that_cannot_start_leaves_the_old_pool_serving(
    served: LiveInstance, tmp_path: Path
) -> None:
    plan = with_layout(
        running_plan(served), tmp_path / "plan.json", tp=2, maximum=1, max_model_len=100_000
    )
    with under_load(served):
        moved = served.command("replan", "--plan", str(plan), timeout_s=400.0)
    print(moved.stdout, moved.stderr)
    assert moved.returncode == 4
    assert "rolled back" in moved.stderr
    assert "do not start" in moved.stderr
    assert (served.pool("main")["ready"], layout(served)) == (1, "TP1")


def test_from_one_rank_to_two_under_load(served: LiveInstance, tmp_path: Path) -> None:
    plan = with_layout(running_plan(served), tmp_path / "plan.json", tp=2, maximum=1)
    one_rank = said_alone(served)
    with under_load(served) as callers:
        started_s = time.monotonic()
        moved = served.command("replan", "--plan", str(plan), timeout_s=600.0)
        print(f"{time.monotonic() - started_s:.0f} s", moved.stdout, moved.stderr)
        assert moved.returncode == 0, moved.stderr
    until(lambda: layout(served) == "TP2", limit_s=60, what="status shows the layout")
    two_ranks = said_alone(served)
    for prompt, got in callers.answers:
        assert got in (one_rank[prompt], two_ranks[prompt])
    assert "TP2" in served.command("status").stdout
    assert [replica["pool"] for replica in served.status()["replicas"]] == ["main"]
    again = served.command("up", str(plan), "--config", str(served.home.parent / "serve.yaml"))
    assert "already running" in again.stdout, again.stdout + again.stderr
