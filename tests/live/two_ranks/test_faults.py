"""What a fault costs with a real engine of two ranks: its processes are struck under load.

One replica, so requests wait for the next: on two cores a second would only slow the first down.
`tests/live/test_faults_scripted.py` has several.
"""

from __future__ import annotations

import asyncio
import signal

import httpx
import pytest

from tests.live.faithful_load import Case
from tests.live.healing import REQUIRED_S
from tests.live.instance import LiveInstance, until
from tests.live.strikes import STRIKES, Victim, strike, undisturbed
from tests.live.tiny_instance import MODEL

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def service(two_ranks: LiveInstance) -> LiveInstance:
    return two_ranks


@pytest.fixture(scope="module")
def cases(service: LiveInstance) -> tuple[list[Case], list[Case]]:
    """Streams and short requests, with the answers of an undisturbed service."""
    streams = [undisturbed(service, f"Once {n}", model=MODEL, length=60) for n in range(3)]
    for case in streams:
        case.body["stream"] = True
    return streams, [undisturbed(service, "One and", model=MODEL, length=2)]


@pytest.mark.parametrize(("victim", "sign"), STRIKES)
async def test_a_struck_process_is_replaced_and_no_request_is_lost(
    service: LiveInstance,
    cases: tuple[list[Case], list[Case]],
    victim: Victim,
    sign: signal.Signals,
) -> None:
    await asyncio.to_thread(whole, service)
    streams, short = cases
    struck = await strike(
        service,
        victim,
        lambda process: process.send_signal(sign),
        streams=streams,
        short=short,
        limit_s=400,
    )
    print(f"\n{sign.name} of the {victim.__name__}: {struck.healing}; {struck.account}")
    print(struck.history)
    assert struck.account.wrong == []
    assert struck.account.streams > 0
    assert struck.healing.apart_s <= REQUIRED_S
    await asyncio.to_thread(whole, service)
    assert not struck.process.is_running()
    await asyncio.to_thread(nothing_left, service)


def nothing_left(service: LiveInstance) -> None:
    """Of the replica that was struck: there are one engine core and two ranks, the new one's."""
    expected = ["VLLM::EngineCore", "ray::CpuRayWorker", "ray::CpuRayWorker"]

    def there() -> list[str]:
        return [title for title in expected[:2] for _ in service.processes(title)]

    try:
        until(lambda: there() == expected, limit_s=60, what="only the new replica's processes")
    except AssertionError as error:
        found = [str(p) for title in expected[:2] for p in service.processes(title)]
        raise AssertionError(f"{error}; there are {found}") from None


def whole(service: LiveInstance) -> None:
    ready = "shardwise_ready_replicas"
    until(lambda: service.metric(ready) == 1, limit_s=240, what="the replica ready")


def test_parts_of_a_long_prompt_are_steps(service: LiveInstance) -> None:
    """Or a long prompt would look like an engine that stands still."""
    whole(service)
    before = steps(service)
    body = {"model": MODEL, "prompt": [7] * 200, "max_tokens": 1}
    url = f"{service.url}/v1/completions"
    answer = httpx.post(url, json=body, headers=service.headers, timeout=300.0)
    assert answer.status_code == 200, answer.text
    # Four parts of at most 64 tokens; canaries add some.
    until(lambda: steps(service) >= before + 4, limit_s=60, what="four steps more")


def steps(service: LiveInstance) -> int:
    return sum(replica["steps"] for replica in service.status()["replicas"])
