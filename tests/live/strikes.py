"""Strike a process of an instance under load, and see how it heals and what callers notice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import psutil

from tests.live.faithful_load import Account, Case, faithful_load
from tests.live.healing import Healing, healed, history
from tests.live.instance import LiveInstance, until

Victim = Callable[[LiveInstance], psutil.Process]


def replica(service: LiveInstance) -> psutil.Process:
    """The process of a replica."""
    return psutil.Process(service.status()["replicas"][0]["pid"])


def engine_core(service: LiveInstance) -> psutil.Process:
    """The process with a vLLM engine's scheduler."""
    return service.processes("VLLM::EngineCore")[0]


def shard_worker(service: LiveInstance) -> psutil.Process:
    """A rank of an engine that has several."""
    return service.processes("ray::CpuRayWorker")[0]


def controller(service: LiveInstance) -> psutil.Process:
    """The controller's process."""
    (found,) = service.processes("ray::ControllerActor")
    return found


STRIKES: Sequence[tuple[Victim, signal.Signals]] = (
    (replica, signal.SIGKILL),
    (replica, signal.SIGSTOP),
    (engine_core, signal.SIGSTOP),
    (shard_worker, signal.SIGSTOP),
)


@dataclass(frozen=True, kw_only=True)
class Struck:
    """What came of it."""

    process: psutil.Process
    healing: Healing
    history: str
    account: Account


async def strike(
    service: LiveInstance,
    victim: Victim,
    hit: Callable[[psutil.Process], None],
    *,
    streams: Sequence[Case],
    short: Sequence[Case],
    limit_s: float,
) -> Struck:
    """Hit a process of a replica under load, and wait until another replica is in its place."""
    async with faithful_load(service, streams=streams, short=short) as account:
        await asyncio.sleep(2.0)
        process = victim(service)
        fault_s = time.time()
        hit(process)
        found = await asyncio.to_thread(healed, service.decisions, fault_s=fault_s, limit_s=limit_s)
    told = history(service.decisions, fault_s=fault_s)
    return Struck(process=process, healing=found, history=told, account=account)


async def strike_controller(
    service: LiveInstance,
    sign: signal.Signals,
    *,
    replicas: int,
    streams: Sequence[Case],
    short: Sequence[Case],
) -> tuple[float, Account]:
    """Hit the controller under load; seconds until another knows every replica."""
    async with faithful_load(service, streams=streams, short=short) as account:
        victim = controller(service)
        fault_s = time.time()
        victim.send_signal(sign)
        back_s = await asyncio.to_thread(
            until,
            lambda: _steered(service, after_s=fault_s, replicas=replicas),
            limit_s=90,
            what="a new controller",
        )
    return back_s, account


def _steered(service: LiveInstance, *, after_s: float, replicas: int) -> bool:
    """Whether a controller that was started since then knows every replica."""
    try:
        status = httpx.get(f"{service.url}/status", timeout=2.0).json()
    except httpx.HTTPError:
        return False
    return status.get("started_s", 0.0) > after_s and len(status["replicas"]) == replicas


def undisturbed(service: LiveInstance, prompt: str, *, model: str, length: int) -> Case:
    """A greedy request, with its answer while nothing is struck."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
    }
    url = f"{service.url}/v1/completions"
    answer = httpx.post(url, json=body, headers=service.headers, timeout=300.0)
    assert answer.status_code == 200, answer.text
    return Case(body=body, expected=answer.json()["choices"][0]["text"])
