from __future__ import annotations

import asyncio
import json

import pytest

from autoscaler.snapshot import WorkloadObservation
from cluster.errors import InfeasibleError, UnavailableError
from cluster.model.plan import Plan
from cluster.model.workload import Workload
from rl_search.replan import Found, Worth
from serving.layout.replan_search import search, search_apart
from serving.layout.replanner import Replanner
from serving.settings.replan_config import ReplanSection
from tests.serving.plans import plan

SEEN = WorkloadObservation(
    pool="main",
    observed_s=0.0,
    requests=500.0,
    requests_per_s=3.0,
    prompt_tokens=640.2,
    output_tokens=12.0,
    streams=0.0,
    ttft_s=0.0,
    tpot_s=0.0,
    in_flight=1.0,
)
SECTION = ReplanSection(min_gain=0.1)


def found(gain: float) -> Found:
    old = Worth(layout="TP1", devices=1, ttft_s=1.0, tpot_s=0.1, goodput_rps=1.0)
    new = Worth(layout="TP2", devices=2, ttft_s=1.0, tpot_s=0.1, goodput_rps=2.0 * (1.0 + gain))
    return Found(plan=plan(tp=2), old=old, new=new)


class Searching:
    """Answers with `answer`, when it may."""

    def __init__(self, answer: Found | Exception) -> None:
        self.answer, self.may = answer, asyncio.Event()
        self.asked: list[Workload] = []

    async def __call__(self, running: Plan, workload: Workload) -> Found:
        self.asked.append(workload)
        await self.may.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def over(replanner: Replanner) -> None:
    async with asyncio.timeout(5):
        while replanner.searching:
            await asyncio.sleep(0)


async def proposed(answer: Found | Exception, *, moved: list[Plan] | None = None) -> str:
    async def move_to(wanted: Plan) -> None:
        assert moved is not None
        moved.append(wanted)

    searching = Searching(answer)
    replanner = Replanner(SECTION, search=searching, move_to=None if moved is None else move_to)
    replanner.begin(plan(), SEEN, reason="prompts are longer")
    searching.may.set()
    await over(replanner)
    assert searching.asked == [Workload(isl=640, osl=12, rate=3.0)]
    assert replanner.proposal is not None
    assert json.dumps(replanner.proposal.told())
    assert replanner.proposal.reason == "prompts are longer"
    return replanner.proposal.verdict


async def test_what_is_found_is_told_and_not_moved_to() -> None:
    assert await proposed(found(0.3)) == "TP2 has +30% goodput per device beside TP1"


async def test_in_act_mode_it_is_moved_to() -> None:
    moved: list[Plan] = []
    assert (await proposed(found(0.3), moved=moved)).endswith("it is moved to")
    assert moved == [plan(tp=2)]


async def test_a_small_gain_is_not_worth_a_move() -> None:
    moved: list[Plan] = []
    assert "worth it from +10%" in await proposed(found(0.05), moved=moved)
    assert moved == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InfeasibleError("no layout fits"), "no layout fits"),
        (UnavailableError("nothing within 5 s"), "nothing within"),
        (RuntimeError("a bug"), "the search failed"),
    ],
)
async def test_a_search_that_fails_says_why(error: Exception, words: str) -> None:
    assert words in await proposed(error)


async def test_there_is_one_search_at_a_time() -> None:
    searching = Searching(found(0.3))
    replanner = Replanner(SECTION, search=searching, move_to=None)
    for _ in range(3):
        replanner.begin(plan(), SEEN, reason="drift")
        await asyncio.sleep(0)
    assert replanner.searching
    searching.may.set()
    await over(replanner)
    assert len(searching.asked) == 1


async def test_the_search_apart_finds_what_the_search_here_finds() -> None:
    from cluster.model.catalogue import get_model
    from cluster.model.cluster_file import parse_cluster
    from rl_search.planner import make_plan
    from rl_search.request import PlanRequest

    running = make_plan(
        PlanRequest(
            model=get_model("llama-3.1-8b"),
            cluster=parse_cluster("1x4xH100"),
            cluster_text="1x4xH100",
            workload=Workload(isl=512, osl=512),
            max_model_len=8192,
        )
    ).plan
    workload = Workload(isl=6000, osl=50, rate=2.0)
    apart = await search_apart(running, workload, budget_s=120.0)
    assert apart == search(running, workload)
    with pytest.raises(UnavailableError, match="isl \\+ osl"):
        await search_apart(running, Workload(isl=9000, osl=50), budget_s=120.0)
    with pytest.raises(UnavailableError, match="nothing within"):
        await search_apart(running, workload, budget_s=0.01)
