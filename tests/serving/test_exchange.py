import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from autoscaler.snapshot import Tier
from serving.control.controller_watch import ControllerWatch, Kill
from serving.exchange import Exchange, keep_in_step
from serving.messages import Directive, GatewayReport
from serving.telemetry.metric import Sample
from tests.serving.fakes import Stage, directive, report


async def nothing() -> None:
    pass


@contextlib.asynccontextmanager
async def in_step(
    stage: Stage,
    exchange: Exchange,
    *,
    fail_open_s: float = 60.0,
    frozen_s: float = 60.0,
    kill: Kill = nothing,
) -> AsyncIterator[None]:
    task = asyncio.create_task(
        keep_in_step(
            stage.service,
            exchange,
            watch=ControllerWatch(kill, clock=time.monotonic, frozen_s=frozen_s),
            interval_s=0.001,
            timeout_s=0.02,
            fail_open_s=fail_open_s,
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
    told = (Sample(name="shardwise_delivered_ratio", value=0.5, labels=("main",)),)
    stage.service.follow(replace(directive(), account=told))
    stage.dispatcher.arrived(50, 0.5)
    stage.service.refresh_gauges()
    assert stage.value("shardwise_delivered_ratio", pool="main") == 0.5
    assert stage.value("shardwise_arriving_work", pool="main") == 0.1


async def test_a_controller_that_answers_nobody_is_ended_once_and_a_dead_one_is_not() -> None:
    stage = Stage()
    kills: list[float] = []
    dead = True

    async def exchange(_: GatewayReport) -> Directive:
        if dead:
            raise ConnectionError("the actor is restarting")
        await asyncio.sleep(60)
        raise AssertionError

    async def kill() -> None:
        kills.append(time.monotonic())

    async with in_step(stage, exchange, frozen_s=0.05, kill=kill):
        await asyncio.sleep(0.2)
        assert kills == []
        dead = False
        await eventually(lambda: kills)
        await asyncio.sleep(0.2)
        assert len(kills) == 1, "a fresh one gets its time"


async def test_those_that_are_ended_are_left_at_once_and_the_closed_get_nothing_new() -> None:
    stage = Stage()
    told = directive(
        *(report(name, sent_s=1000) for name in ("open", "closed")),
        closed=frozenset({"closed"}),
        lost=frozenset({"ended"}),
    )
    stage.service.follow(told)
    assert stage.dispatcher.ready == 1
    assert stage.link.lost == {"ended"}


async def test_what_the_controller_says_of_faults_is_in_the_metrics() -> None:
    stage = Stage()
    account = (Sample(name="shardwise_replica_restarts", value=2, labels=("main",)),)
    stage.service.follow(replace(directive(), account=account, troubles={"main": "no room"}))
    assert stage.value("shardwise_replica_restarts", pool="main") == 2
    assert stage.value("shardwise_starts_held", pool="main") == 1
    stage.service.follow(directive())
    assert stage.value("shardwise_starts_held", pool="main") == 0
