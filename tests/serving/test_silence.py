"""A replica that says nothing is not waited for without end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from serving.delivery import _never_silent


async def _talk(*gaps_s: float) -> AsyncIterator[list[str]]:
    for gap_s in gaps_s:
        await asyncio.sleep(gap_s)
        yield ["token"]


async def test_messages_pass_and_end() -> None:
    assert [m async for m in _never_silent(_talk(0, 0, 0), limit_s=5)] == [["token"]] * 3


async def test_a_gap_over_the_limit_ends_the_wait() -> None:
    heard = []
    with pytest.raises(TimeoutError):
        async for message in _never_silent(_talk(0, 60), limit_s=0.05):
            heard.append(message)
    assert heard == [["token"]]
