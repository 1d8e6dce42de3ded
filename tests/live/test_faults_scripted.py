"""Frozen replicas, failing starts, a frozen controller: with scripted engines, so in seconds.

`tests/live/two_ranks/test_faults.py` has real ones.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.live import scripted_engine
from tests.live.faithful_load import Case, faithful_load
from tests.live.healing import REQUIRED_S
from tests.live.instance import until
from tests.live.scripted_engine import Pace, said, text
from tests.live.scripted_instance import (
    MODEL,
    REPLICAS,
    SLOTS,
    ScriptedInstance,
    scripted_instance,
)
from tests.live.strikes import (
    controller,
    give_up_controller,
    replica,
    steered,
    strike,
    strike_controller,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

FAULTS = {"start_limit_s": 25.0, "failed_starts": 3, "backoff_s": 5.0}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    steering = {"faults": FAULTS}
    home = tmp_path_factory.mktemp("home")
    with scripted_instance(home, steering=steering, gateways=2) as instance:
        yield instance


def case(number: int, *, length: int, pace: Pace, stream: bool = True) -> Case:
    prompt = f"caller {number}"
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": length,
        "user": pace.user(),
        "stream": stream,
    }
    return Case(body=body, expected=text(said([ord(letter) for letter in prompt], length)))


STREAMS = [case(number, length=40, pace=Pace(token_s=0.1)) for number in range(12)]
SHORT = [case(100 + number, length=2, pace=Pace(), stream=False) for number in range(3)]


@pytest.mark.parametrize("fault", ["freeze", "kill"])
async def test_a_struck_replica_is_replaced_and_no_request_is_lost(
    service: ScriptedInstance, fault: str
) -> None:
    await asyncio.to_thread(service.whole)
    hit = psutil.Process.kill if fault == "kill" else service.freeze
    struck = await strike(service, replica, hit, streams=STREAMS, short=SHORT, limit_s=90)
    print(f"\n{fault} of a replica: {struck.healing}; {struck.account}")
    print(struck.history)
    assert struck.account.wrong == []
    assert struck.account.streams > 0 and struck.account.short > 0
    assert struck.healing.apart_s <= REQUIRED_S
    assert not struck.process.is_running()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_controller_is_back_and_nobody_has_noticed(
    service: ScriptedInstance, sign: signal.Signals
) -> None:
    await asyncio.to_thread(service.whole)
    before = controller(service)
    back_s, account = await strike_controller(
        service, sign, replicas=REPLICAS, streams=STREAMS, short=SHORT
    )
    print(f"\n{sign.name} of the controller: another after {back_s:.1f} s; {account}")
    assert account.wrong == []
    assert account.short > 0
    assert back_s <= REQUIRED_S
    assert not before.is_running()
    assert len(service.processes("ray::ControllerActor")) == 1


async def test_a_controller_that_ray_gives_up_has_a_successor(service: ScriptedInstance) -> None:
    await asyncio.to_thread(service.whole)
    ended_s = time.time()
    async with faithful_load(service, streams=STREAMS, short=SHORT) as account:
        await asyncio.to_thread(give_up_controller, service)
        back_s = await asyncio.to_thread(
            until,
            lambda: steered(service, after_s=ended_s, replicas=REPLICAS),
            limit_s=90,
            what="a new controller",
        )
    print(f"\nanother controller after {back_s:.1f} s; {account}")
    assert account.wrong == []
    assert account.short > 0


async def test_a_burst_costs_no_replica_its_life(service: ScriptedInstance) -> None:
    """Every slot is taken by prompts of which nothing is heard for longer than a stall may last."""
    await asyncio.to_thread(service.whole)
    before = {replica["replica_id"] for replica in service.status()["replicas"]}
    slow = Pace(prefill_s=15.0)
    crowd = [case(1000 + number, length=2, pace=slow) for number in range(REPLICAS * SLOTS)]
    async with faithful_load(service, streams=crowd, short=[]) as account:
        await asyncio.sleep(5.0)
    assert account.wrong == []
    assert account.streams == len(crowd)
    assert {replica["replica_id"] for replica in service.status()["replicas"]} == before


@contextmanager
def broken(service: ScriptedInstance, why: str) -> Iterator[None]:
    """No engine starts meanwhile."""
    file = service.state.directory / scripted_engine.BROKEN
    file.write_text(why)
    try:
        yield
    finally:
        file.unlink()


def trouble(service: ScriptedInstance) -> str:
    words: str = service.pool("main")["trouble"]
    return words


def test_starts_that_fail_are_given_up_with_the_reason_and_tried_again(
    service: ScriptedInstance,
) -> None:
    service.whole()
    with broken(service, "no room for 7 blocks"):
        service.kill(service.replicas()[:1])
        given_up_s = until(lambda: trouble(service) != "", limit_s=120, what="a reason")
        print(f"\ngiven up after {given_up_s:.1f} s: {trouble(service)}")
        assert "no room for 7 blocks" in trouble(service)
        assert "no room for 7 blocks" in service.command("status").stdout
        until(lambda: service.pool("main")["target"] == 2, limit_s=60, what="a lower target")
        assert service.metric("shardwise_starts_held") > 0
        assert httpx.post(f"{service.url}/v1/completions", json=SHORT[0].body).status_code == 200
    back_s = until(lambda: trouble(service) == "", limit_s=90, what="a start that answers")
    service.whole()
    print(f"back {back_s:.1f} s after the reason was gone")


def test_a_start_that_never_ends_is_ended(service: ScriptedInstance) -> None:
    service.whole()
    before = service.pool("main")["restarts"]
    with broken(service, ""):
        service.kill(service.replicas()[:1])
        ended_s = until(
            lambda: service.pool("main")["restarts"] > before, limit_s=90, what="a restart"
        )
    print(f"\na stuck start was ended after {ended_s:.1f} s, at a limit of 25 s")
    service.whole()
