"""A Serve configuration asks for a plan: what is done depends on what runs."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import ConfigError, InputError, UnavailableError
from cluster.model.plan import Plan
from serving.layout.generations import digest
from serving.rayservice import reconcile as reconciling
from serving.rayservice.reconcile import Running, reconcile
from serving.rayservice.wanted import Wanted, read_wanted
from serving.settings.config import ServeConfig
from tests.serving.plans import plan

PLAN = plan()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciling, "POLL_S", 0.0)


def hub(made: Plan) -> Plan:
    """The plan with a source that needs no directory."""
    (pool,) = made.pools
    model = pool.model.model_copy(update={"source": "org/model"})
    return made.model_copy(update={"pools": (pool.model_copy(update={"model": model}),)})


def wanted(made: Plan = PLAN, **fields: Any) -> Wanted:
    return Wanted(plan=hub(made), config=ServeConfig(), **fields)


class FakeService:
    """A service under `runs`, whose moves end as `ends` says."""

    def __init__(self, runs: Plan | None, *, failed: bool = False, ends: str = "done") -> None:
        self.runs = None if runs is None else hub(runs)
        self.given = None if self.runs is None else digest(self.runs)
        self.failed, self.ends, self.trouble = failed, ends, ""
        self.move: dict[str, Any] | None = None
        self.log: list[str] = []
        self.looks = 0

    async def running(self) -> Running | None:
        if self.runs is None:
            return None
        return Running(config=ServeConfig().model_dump_json(), failed=self.failed)

    async def bring_up(self, wanted: Wanted) -> None:
        self.log.append("up")
        self.runs, self.given = wanted.resolved, wanted.digest

    async def take_down(self) -> None:
        self.log.append("down")

    async def layout(self) -> dict[str, Any]:
        self.looks += 1
        assert self.runs is not None
        if self.move is not None and self.move["phase"] == "moving":
            self.move["phase"] = self.ends
            if self.ends == "done":
                self.runs, self.given = self.move.pop("plan"), self.move.pop("given")
        return {
            "looked": self.looks > 1,
            "wanted": self.given,
            "plan": self.runs.dumps(),
            "move": self.move,
        }

    async def move_to(self, plan: Plan, *, below_floor: bool) -> dict[str, Any]:
        self.log.append(f"move, below floor: {below_floor}")
        self.move = {"number": 2, "phase": "moving", "reason": "no first answer"}
        self.move |= {"plan": plan, "given": digest(plan)}
        return {"number": 2, "steps": []}

    async def ready(self, gateways: int) -> bool:
        assert gateways == ServeConfig().http.gateways
        return not self.trouble

    async def failure(self) -> str:
        return self.trouble


async def test_where_nothing_runs_it_is_brought_up() -> None:
    service = FakeService(None)
    await reconcile(wanted(), service)
    assert service.log == ["up"]


async def test_a_plan_that_runs_already_changes_nothing() -> None:
    service = FakeService(PLAN)
    await reconcile(wanted(), service)
    assert service.log == []


async def test_another_plan_is_a_move_and_no_restart() -> None:
    service = FakeService(PLAN)
    await reconcile(wanted(plan(tp=2)), service)
    assert service.log == ["move, below floor: False"]
    assert service.runs == hub(plan(tp=2))


async def test_the_operator_may_allow_requests_to_wait_meanwhile() -> None:
    service = FakeService(PLAN)
    await reconcile(wanted(plan(tp=2), allow_below_floor=True), service)
    assert service.log == ["move, below floor: True"]


async def test_where_the_controller_has_moved_on_since_the_plan_was_given_it_stays() -> None:
    service = FakeService(PLAN)
    service.runs = hub(plan(tp=4))  # by its own replan; the plan given last is as it was
    await reconcile(wanted(), service)
    assert service.log == []


async def test_a_move_under_way_is_waited_for_before_anything_is_asked() -> None:
    service = FakeService(PLAN)
    await service.move_to(hub(plan(tp=2)), below_floor=False)
    await reconcile(wanted(plan(tp=2)), service)
    assert service.log == ["move, below floor: False"], "it was that plan's own"


async def test_a_move_that_was_rolled_back_is_told_with_its_reason() -> None:
    service = FakeService(PLAN, ends="rolled back")
    with pytest.raises(UnavailableError, match="rolled back, the old layout serves: no first"):
        await reconcile(wanted(plan(tp=2)), service)


async def test_a_plan_of_which_nothing_would_move_is_content_with_what_runs() -> None:
    service = FakeService(PLAN)
    await reconcile(wanted(plan(goodput_rps=2.0)), service)
    assert service.log == []


async def test_a_plan_that_cannot_take_over_is_refused_with_the_controller_s_words() -> None:
    service = FakeService(PLAN)

    async def refuse(plan: Plan, *, below_floor: bool) -> dict[str, Any]:
        return {"error": "the plan is for model 'b'", "exit_code": 2}

    service.move_to = refuse  # type: ignore[method-assign]
    with pytest.raises(InputError, match="cannot take the plan: the plan is for model 'b'"):
        await reconcile(wanted(plan(tp=2)), service)


async def test_another_configuration_is_refused_and_says_which_sections_differ() -> None:
    asked = Wanted(plan=hub(PLAN), config=ServeConfig.model_validate({"http": {"port": 9000}}))
    with pytest.raises(InputError, match=r"differs in: http\).* Fix: let KubeRay roll one out"):
        await reconcile(asked, FakeService(PLAN))


async def test_what_never_served_is_taken_down_and_brought_up_anew() -> None:
    service = FakeService(PLAN, failed=True)
    await reconcile(wanted(), service)
    assert service.log == ["down", "up"]


async def test_a_service_that_does_not_start_is_told_with_the_engine_s_reason() -> None:
    service = FakeService(None)
    service.trouble = "main: ValueError: no such model"
    with pytest.raises(UnavailableError, match="did not start: main: ValueError: no such model"):
        await reconcile(wanted(), service)


def arguments(**fields: Any) -> dict[str, Any]:
    return {"plan": hub(PLAN).model_dump(mode="json"), **fields}


def test_arguments_are_read_as_files_are() -> None:
    read = read_wanted(arguments(config={"http": {"port": 9000}}, allow_below_floor=True))
    assert (read.plan, read.config.http.port, read.allow_below_floor) == (hub(PLAN), 9000, True)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "field 'plan': is missing"),
        (arguments(plans={}), "field 'plans': is not known.*there are plan, config"),
        (arguments(config=[1]), "field 'config': is no mapping of sections"),
        (arguments(config={"http": {"prot": 1}}), "config: field 'http.prot'"),
        (
            arguments() | {"plan": {"version": 9}},
            "plan: field 'version': is 9, this release reads version 1",
        ),
    ],
)
def test_arguments_with_mistakes_name_the_field(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_wanted(given)


def test_a_plan_that_replicas_here_cannot_be_started_with_is_refused() -> None:
    given = arguments()
    given["plan"]["pools"][0]["layout"]["dp"] = 2
    with pytest.raises(InputError, match=r"dp = 2.*Fix: plan with --max-dp 1"):
        read_wanted(given)
