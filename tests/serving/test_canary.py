"""Canaries of a gateway over fake replicas, by a clock of the test's own."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import serving.canary
from serving.canary import Canaries
from serving.messages import EngineError
from serving.watch import Watch, WatchedLink
from tests.serving.fakes import (
    Clock,
    FakeLink,
    Gate,
    Stage,
    answering,
    directive,
    failing,
    lost_after,
    report,
)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(serving.canary, "BEAT_S", 0.001)
    yield


class Scene:
    """A gateway's service and its canaries; `hears` is an exchange with the controller."""

    def __init__(self, **of_stage: Any) -> None:
        self.clock = Clock()
        watch = Watch(self.clock)
        self.fake = FakeLink(answering("."))
        self.stage = Stage(link=WatchedLink(self.fake, watch), **of_stage)  # type: ignore[arg-type]
        self.canaries = Canaries(
            self.stage.service.fronts.values(),
            watch=watch,
            metrics=self.stage.metrics,
            after_s=5.0,
        )

    def hears(self, *names: str, **more: Any) -> None:
        told = directive(*(report(name, sent_s=self.clock()) for name in names), **more)
        self.stage.service.follow(self.canaries.admit(told))

    @property
    def asked(self) -> list[str]:
        return [replica_id for replica_id, _ in self.fake.calls]


async def settled() -> None:
    await asyncio.sleep(0.1)


async def test_a_new_replica_takes_requests_after_its_first_canary() -> None:
    scene, gate = Scene(), Gate()
    scene.fake.script = gate.script
    scene.hears("a")
    await gate.reached.wait()
    scene.hears("a")
    assert not scene.stage.service.ready
    gate.open.set()
    await settled()
    scene.hears("a")
    assert scene.stage.service.ready
    assert scene.asked == ["a"]


async def test_who_was_heard_lately_is_not_asked_and_who_was_not_is() -> None:
    scene = Scene()
    scene.hears("a", "b")
    await settled()
    assert sorted(scene.asked) == ["a", "b"]
    scene.clock.now_s += 4.9
    scene.hears("a", "b")
    await settled()
    assert len(scene.asked) == 2
    scene.clock.now_s += 0.2
    scene.hears("a")
    await settled()
    assert scene.asked[2:] == ["a"], "b is no longer there"


async def test_a_canary_asks_for_one_token_ahead_of_everybody_and_leaves_no_trace() -> None:
    scene = Scene()
    scene.hears("a")
    await settled()
    ((_, asked),) = scene.fake.calls
    assert (asked.kind, asked.body["max_tokens"], asked.stream) == ("completions", 1, False)
    assert asked.trace == {}
    assert scene.stage.value("shardwise_canary_total", pool="main", outcome="answered") == 1
    assert scene.stage.service.report().loads[0].in_flight_tokens == 0
    assert scene.stage.service.report().loads[0].arrival_tokens_per_s == 0
    assert scene.stage.dispatcher.in_flight() == {}


async def test_a_model_of_vectors_is_asked_for_one() -> None:
    scene = Scene(embedding=("main",))
    scene.hears("a")
    await settled()
    scene.hears("a")
    assert [asked.kind for _, asked in scene.fake.calls] == ["embeddings"]
    assert scene.stage.service.ready


async def test_one_canary_at_a_time_and_what_it_waits_for_is_owed() -> None:
    scene = Scene()
    scene.hears("a")
    await settled()
    gate = Gate()
    scene.fake.script = gate.script
    for _ in range(3):
        scene.clock.now_s += 6
        scene.hears("a")
        await settled()
    assert len(scene.asked) == 2
    assert scene.canaries.owed()["a"].owed_s == 12
    scene.canaries.close()


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (lost_after(), "lost"),
        (failing(EngineError(status=503, message="dead", retryable=True)), "refused"),
    ],
)
async def test_a_canary_that_fails_opens_nothing_and_is_sent_again(
    script: Any, outcome: str
) -> None:
    scene = Scene()
    scene.fake.script = script
    scene.hears("a")
    await settled()
    scene.hears("a")
    await settled()
    assert not scene.stage.service.ready
    assert scene.stage.value("shardwise_canary_total", pool="main", outcome=outcome) >= 2


async def test_what_the_controller_closes_stays_closed_and_the_lost_are_not_asked() -> None:
    scene = Scene()
    scene.hears("a", "b", closed=frozenset({"a"}), lost=frozenset({"b"}))
    await settled()
    scene.hears("a", "b", closed=frozenset({"a"}), lost=frozenset({"b"}))
    assert scene.asked == ["a"]
    assert not scene.stage.service.ready
