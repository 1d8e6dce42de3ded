"""Drift leads to a search, a proposal and, where that is wanted, a move."""

from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.reasons import Action, Reason
from autoscaler.snapshot import ClusterSnapshot, Decision, WorkloadObservation
from cluster.model.plan import Plan
from cluster.model.workload import Workload
from cluster.planned_work import planned_work
from rl_search.replan import Found, Worth
from serving.control.observe import Heard
from serving.layout import layout_keeper, layout_steering, move_ground, mover
from serving.layout.generations import Generation, Order, digest, following
from serving.layout.layout_steering import LayoutSteering
from serving.layout.layouts import Layouts
from serving.settings.replan_config import ReplanSection
from serving.settings.steering_config import SteeringSection
from tests.serving.fake_serve import FakeServe
from tests.serving.plans import plan

RUNNING = plan(tp=1, initial=2)
DRIFT = Decision(
    action=Action.REPLAN, pool="main", value=1, kind=Reason.DRIFT, reason="prompts are longer"
)
NAN = float("nan")


def snapshot() -> ClusterSnapshot:
    seen = WorkloadObservation(
        pool="main",
        observed_s=0.0,
        requests=500.0,
        requests_per_s=2.0,
        prompt_tokens=400.0,
        output_tokens=100.0,
        streams=0.0,
        ttft_s=NAN,
        tpot_s=NAN,
        in_flight=1.0,
    )
    return ClusterSnapshot(now_s=0.0, pools=(), loads=(), workloads=(seen,))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def search(running: Plan, workload: Workload, *, budget_s: float) -> Found:
        assert (running, workload.isl, budget_s) == (RUNNING, 400, 120.0)
        old = Worth(layout="TP1", devices=1, ttft_s=1.0, tpot_s=0.1, goodput_rps=1.0)
        new = Worth(layout="TP2", devices=2, ttft_s=1.0, tpot_s=0.1, goodput_rps=3.0)
        return Found(plan=plan(tp=2), old=old, new=new)

    async def first_answer(*_: object, **__: object) -> str:
        return ""

    monkeypatch.setattr(layout_steering, "search_apart", search)
    monkeypatch.setattr(layout_keeper, "first_answer", first_answer)
    monkeypatch.setattr(move_ground, "POLL_S", 0.0)
    monkeypatch.setattr(mover, "FREED_S", 0.0)


def steering(serve: FakeServe, *, mode: str, replan: str) -> LayoutSteering:
    heard = Heard()
    section = SteeringSection(mode=mode, replan=ReplanSection(mode=replan))  # type: ignore[arg-type]
    layouts = Layouts(
        plan=RUNNING, steering=section, apps=serve, nodes=serve.nodes, link_secret="s"
    )
    made = LayoutSteering(
        layouts,
        deployment="main",
        app="app",
        scaler=serve,  # type: ignore[arg-type]
        heard=heard,
        needed=lambda: 1,
    )
    heard.replicas = serve.reports()
    return made


@pytest.mark.parametrize(
    ("mode", "replan", "moves"),
    [("active", "advise", False), ("advisory", "act", False), ("active", "act", True)],
)
async def test_a_better_layout_is_told_and_moved_to_only_where_both_modes_say_so(
    mode: str, replan: str, *, moves: bool
) -> None:
    serve = FakeServe(
        Generation(pool="main", number=1, name="main", plan=RUNNING), replicas=2, devices=4
    )
    layouts = steering(serve, mode=mode, replan=replan)
    layouts.see(await serve.states())
    layouts.drifted(DRIFT, snapshot())
    async with asyncio.timeout(5):
        while layouts.status(None)["proposal"] is None:
            await asyncio.sleep(0)
    told = layouts.status(snapshot())
    assert "+50% goodput per device" in told["proposal"]["verdict"]
    assert told["proposal"]["reason"] == "prompts are longer"
    assert (told["move"] is not None) == moves
    assert told["ratios"] == {"prompt_tokens": 4.0, "output_tokens": 1.0}
    assert json.dumps(told, allow_nan=False)


async def test_after_a_move_gateways_are_told_what_tokens_cost_now() -> None:
    first = Generation(pool="main", number=1, name="main", plan=RUNNING)
    serve = FakeServe(first, replicas=2, devices=4)
    layouts = steering(serve, mode="active", replan="off")
    layouts.see(await serve.states())
    assert layouts.work == {}, "they know it from their own plan"
    order = Order(replicas=1, restore=2, floor=1.0, below_floor=False)
    faster = plan(tp=2, goodput_rps=4.0)
    serve.start(following(first, number=2, app="app", plan=faster, order=order), replicas=1)
    await serve.scale("main", 0)
    again = steering(serve, mode="active", replan="off")
    again.see(await serve.states())
    before = planned_work(RUNNING.main, plan=RUNNING).of(prompt_tokens=100, output_tokens=100)
    after = again.work["main"].of(prompt_tokens=100, output_tokens=100)
    assert after == pytest.approx(before / 4.0, rel=0.01)


async def test_orders_that_cannot_be_kept_are_answered_with_what_is_wrong() -> None:
    serve = FakeServe(
        Generation(pool="main", number=1, name="main", plan=RUNNING), replicas=2, devices=4
    )
    layouts = steering(serve, mode="active", replan="off")
    layouts.see(await serve.states())
    said = await layouts.begin(plan(tp=2, name="another").dumps(), below_floor=False)
    assert (said["exit_code"], "for model 'another'" in said["error"]) == (2, True)
    shown = await layouts.preview(plan(tp=2).dumps(), below_floor=False)
    assert shown["steps"][0] == "start 1 replica(s) of the new layout"
    assert layouts.layout(1) == {
        "looked": True,
        "wanted": digest(RUNNING),
        "number": 1,
        "plan": None,
        "move": None,
    }
