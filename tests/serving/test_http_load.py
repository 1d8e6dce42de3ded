"""What the caller sees of the waiting line and of the degradation tiers."""

import asyncio

from autoscaler.snapshot import Tier
from serving.settings.config import LimitsSection
from tests.serving.fakes import (
    Caller,
    FakeLink,
    Gate,
    Stage,
    chat,
)

CHAT = "/v1/chat/completions"


async def test_a_full_line_refuses_with_retry_after() -> None:
    gate = Gate()
    stage = Stage(limits=LimitsSection(max_queued=1), max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    running, waiting = (Caller(stage.app(), chat()) for _ in range(2))
    await gate.reached.wait()
    await asyncio.sleep(0.01)
    async with stage.client() as client:
        refused = await client.post(CHAT, json=chat())
        vip = asyncio.create_task(
            client.post(CHAT, json=chat(), headers={"X-Shardwise-Priority": "VIP"})
        )
        await asyncio.sleep(0.01)
        gate.open.set()
        assert (await vip).status_code == 200
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "7")
    assert refused.json()["error"]["code"] == "queue_full"
    await asyncio.gather(running.task, waiting.task)
    assert (running.status, waiting.status) == (200, 200)
    stage.assert_idle()


async def test_waiting_too_long_for_a_busy_replica_is_429() -> None:
    gate = Gate()
    limits = LimitsSection(queue_wait_s=0.05)
    stage = Stage(limits=limits, max_requests=1, link=FakeLink(gate.script))
    stage.ready("a")
    running = Caller(stage.app(), chat())
    await gate.reached.wait()
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat())
    assert (response.status_code, response.json()["error"]["code"]) == (429, "queue_timeout")
    gate.open.set()
    await running.task
    stage.assert_idle()


async def test_waiting_too_long_for_any_replica_is_503() -> None:
    stage = Stage(limits=LimitsSection(queue_wait_s=0.02))
    async with stage.client() as client:
        response = await client.post(CHAT, json=chat())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert "'big'" in response.json()["error"]["message"]
    stage.assert_idle()


# Tiers.


async def test_tiers_change_the_request_and_say_so() -> None:
    stage = Stage()
    async with stage.client() as client:
        for tier in (Tier.NO_LOGPROBS, Tier.SHORT_OUTPUT):
            stage.ready("a", tier=tier)
            body = chat(logprobs=True, top_logprobs=2, max_completion_tokens=50, min_tokens=20)
            response = await client.post(CHAT, json=body)
            assert response.headers["X-Shardwise-Tier"] == str(int(tier))
            assert "logprobs-off" in response.headers["X-Shardwise-Degraded"]
    first, second = (request.body for _, request in stage.link.calls)
    assert not {"logprobs", "top_logprobs"} & (first.keys() | second.keys())
    assert (first["max_completion_tokens"], first["min_tokens"]) == (50, 20)
    assert (second["max_tokens"], second["min_tokens"]) == (16, 16)
    assert "max_completion_tokens" not in second
    assert stage.value("shardwise_degraded_total", change="max-tokens") == 1


async def test_tier_3_moves_to_the_light_model_those_it_fits() -> None:
    stage = Stage(with_light=True, light_context=30)
    stage.ready("a", light=["l"], tier=Tier.LIGHT_MODEL)
    long = chat(messages=[{"role": "user", "content": "x " * 20}])
    vip = {"X-Shardwise-Priority": "vip"}
    async with stage.client() as client:
        moved = await client.post(CHAT, json=chat())
        await client.post(CHAT, json=long)
        await client.post(CHAT, json=chat(), headers=vip)
        asked = await client.post(CHAT, json=chat(model="small"))
    assert [replica for replica, _ in stage.link.calls] == ["l", "a", "a", "l"]
    assert stage.link.calls[0][1].body["model"] == "small"
    assert "light-model" in moved.headers["X-Shardwise-Degraded"]
    assert "light-model" not in asked.headers["X-Shardwise-Degraded"]
    arrived = {load.pool: load.arrival_tokens_per_s for load in stage.service.report().loads}
    assert arrived["light"] > 0
    assert arrived["main"] > 0


async def test_without_a_ready_light_replica_nothing_is_moved() -> None:
    stage = Stage(with_light=True)
    stage.ready("a", tier=Tier.LIGHT_MODEL)
    async with stage.client() as client:
        await client.post(CHAT, json=chat())
    assert [replica for replica, _ in stage.link.calls] == ["a"]


async def test_tier_4_sheds_all_but_vips_and_counts_them_as_arrived() -> None:
    stage = Stage(with_light=True)
    stage.ready("a", light=["l"], tier=Tier.SHED)
    async with stage.client() as client:
        shed = await client.post(CHAT, json=chat())
        loads = {load.pool: load.arrival_tokens_per_s for load in stage.service.report().loads}
        vip = await client.post(CHAT, json=chat(), headers={"X-Shardwise-Priority": "vip"})
    assert (shed.status_code, shed.headers["Retry-After"]) == (429, "7")
    assert shed.json()["error"]["code"] == "overloaded"
    assert shed.headers["X-Shardwise-Tier"] == "4"
    assert (loads["main"] > 0, loads["light"]) == (True, 0)
    assert vip.status_code == 200
    assert [replica for replica, _ in stage.link.calls] == ["a"]
    assert stage.value("shardwise_degraded_total", change="shed") == 1
