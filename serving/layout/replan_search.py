"""The search for a layout for what is served now, in a process of its own.

    python -m serving.layout.replan_search < question.json > found.json   (by `search_apart`)

It is the planner's exact search, which takes seconds and a core: beside a service it runs at the
lowest priority, and is ended when its budget is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster.errors import InputError, ShardwiseError, UnavailableError
from cluster.model.cluster_file import parse_cluster
from cluster.model.hardware import NodeGroup
from cluster.model.plan import Plan, parse_plan
from cluster.model.planned import planned_group, planned_model
from cluster.model.workload import Lengths, Workload
from cluster.ray_backend.inventory import cpu_group, local_cluster
from rl_search.checks import group_of
from rl_search.replan import Found, Worth, find
from serving.layout.succession import context

_SOURCE = "the plan that is served"
_LOWEST = 19
_ROOT = Path(__file__).resolve().parents[2]


def search(plan: Plan, workload: Workload) -> Found:
    """Search here and now. Raises InputError, InfeasibleError."""
    light = plan.light
    return find(
        plan,
        plan_group(plan),
        model=planned_model(plan.main, source=_SOURCE),
        light=None if light is None else planned_model(light, source=_SOURCE),
        workload=workload,
        context=context(plan.main),
    )


async def search_apart(plan: Plan, workload: Workload, *, budget_s: float) -> Found:
    """Search in a process of its own. Raises UnavailableError if it fails, or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "serving.layout.replan_search"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=_ROOT,
    )
    question = json.dumps({"plan": plan.dumps(), "workload": asdict(workload)})
    try:
        async with asyncio.timeout(budget_s):
            said, _ = await process.communicate(question.encode())
    except TimeoutError:
        raise UnavailableError(f"the search has found nothing within {budget_s:g} s.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return _found(said, code=process.returncode)


def plan_group(plan: Plan) -> NodeGroup:
    """The devices the plan was made for; by their name alone where its cluster file is not here."""
    section = plan.cluster
    try:
        if section.spec.strip().lower() == "local":
            return cpu_group() if section.device_kind == "cpu" else local_cluster().groups[0]
        return group_of(plan, parse_cluster(section.spec))
    except InputError:
        return planned_group(section)


def _found(said: bytes, *, code: int | None) -> Found:
    try:
        data: dict[str, Any] = json.loads(said)
    except ValueError:
        raise UnavailableError(f"the search has ended with code {code}.") from None
    if "error" in data:
        raise UnavailableError(f"the search has found nothing: {data['error']}")
    return Found(
        plan=parse_plan(data["plan"], source="the plan that was found"),
        old=Worth(**data["old"]),
        new=Worth(**data["new"]),
    )


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    workload = question["workload"]
    try:
        found = search(
            parse_plan(question["plan"], source=_SOURCE),
            Workload(**{**workload, "lengths": Lengths(workload["lengths"])}),
        )
    except ShardwiseError as error:
        return {"error": str(error)}
    return {"plan": found.plan.dumps(), "old": asdict(found.old), "new": asdict(found.new)}


if __name__ == "__main__":
    os.nice(_LOWEST)
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
