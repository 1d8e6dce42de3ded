"""Strike a process of an instance under load, and see how it heals and what callers notice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import psutil

from tests.live.faithful_load import Account, Case, faithful_load
from tests.live.healing import Healing, healed, history
from tests.live.instance import REPOSITORY, LiveInstance, until

Victim = Callable[[LiveInstance], psutil.Process]


def replica(service: LiveInstance) -> psutil.Process:
    """The process of a replica."""
    return service.replicas_alive("main")[0]


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
            lambda: steered(service, after_s=fault_s, replicas=replicas),
            limit_s=90,
            what="a new controller",
        )
    return back_s, account


def steered(service: LiveInstance, *, after_s: float, replicas: int) -> bool:
    """Whether a controller that was started since then knows every replica."""
    try:
        status = httpx.get(f"{service.url}/status", timeout=2.0).json()
    except httpx.HTTPError:
        return False
    return status.get("started_s", 0.0) > after_s and len(status["replicas"]) == replicas


def give_up_controller(service: LiveInstance) -> None:
    """End the controller for good, as Ray does with one that cannot be loaded."""
    where = service.progress()
    script = (
        "import sys, ray; from serving.app import CONTROLLER;"
        "ray.init(sys.argv[1], namespace=sys.argv[2], log_to_driver=False);"
        "ray.kill(ray.get_actor(CONTROLLER), no_restart=True)"
    )
    arguments = (where["ray_address"], where["namespace"])
    subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=REPOSITORY,
        # It asks for this user's token, and is a loopback cluster.
        env={
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        },
        check=True,
        timeout=60,
    )


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
