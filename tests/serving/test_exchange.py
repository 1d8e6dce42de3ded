import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from autoscaler.snapshot import Tier
from serving.exchange import Exchange, keep_in_step
from serving.messages import Directive, GatewayReport
from tests.serving.fakes import Stage, directive, report


@contextlib.asynccontextmanager
async def in_step(
    stage: Stage, exchange: Exchange, *, fail_open_s: float = 60.0
) -> AsyncIterator[None]:
    task = asyncio.create_task(
        keep_in_step(
            stage.service, exchange, interval_s=0.001, timeout_s=0.02, fail_open_s=fail_open_s
        )
    )
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(check: object) -> None:
    async with asyncio.timeout(5):
        while not check():  # type: ignore[operator]
            await asyncio.sleep(0.002)


async def test_the_last_directive_stays_in_force_whatever_the_controller_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    sent: list[GatewayReport] = []
    trouble: list[str] = []

    async def exchange(told: GatewayReport) -> Directive:
        sent.append(told)
        if not trouble:
            return directive(report("a", sent_s=1000), tier=Tier.SHORT_OUTPUT)
        if trouble[-1] == "silent":
            await asyncio.sleep(60)
        raise RuntimeError("controller died")

    async with in_step(stage, exchange):
        await eventually(lambda: stage.service.ready)
        for kind in ("dead", "silent"):
            trouble.append(kind)
            reports = len(sent)
            await eventually(lambda: len(sent) > reports + 2)  # noqa: B023  # awaited here
            assert (stage.service.ready, stage.service.tier) == (True, Tier.SHORT_OUTPUT)
        trouble.clear()
        await eventually(lambda: "is back" in caplog.text)
    assert caplog.text.count("is away") == 1  # said once, not at every beat


async def test_a_controller_that_stays_away_degrades_nobody_for_ever() -> None:
    stage = Stage()
    alive = True

    async def exchange(_: GatewayReport) -> Directive:
        if not alive:
            raise RuntimeError("controller died")
        return directive(report("a", sent_s=1000), tier=Tier.SHED)

    async with in_step(stage, exchange, fail_open_s=0.05):
        await eventually(lambda: stage.service.tier is Tier.SHED)
        alive = False
        await eventually(lambda: stage.service.tier is Tier.NORMAL)
        assert stage.service.ready


async def test_the_report_carries_the_traffic() -> None:
    stage = Stage()
    stage.dispatcher.arrived(50, 0.5)
    told = stage.service.report()
    assert [load.pool for load in told.loads] == ["main"]
    assert told.loads[0].arrival_tokens_per_s == 10
    assert told.loads[0].arrival_work == 0.1


async def test_what_replicas_deliver_is_a_metric() -> None:
    stage = Stage()
    stage.service.refresh_gauges()
    assert stage.value("shardwise_delivered_ratio", pool="main") == 1.0
    stage.service.follow(replace(directive(), delivered={"main": 0.5}))
    stage.dispatcher.arrived(50, 0.5)
    stage.service.refresh_gauges()
    assert stage.value("shardwise_delivered_ratio", pool="main") == 0.5
    assert stage.value("shardwise_arriving_work", pool="main") == 0.1
