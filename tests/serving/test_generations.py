"""What a controller that starts anew makes of what Serve has."""

from __future__ import annotations

from dataclasses import replace

from serving.control.scaler import DeploymentState, ServeReplica
from serving.layout.generations import Generation, Order, following, standing
from tests.serving.plans import plan

FIRST = Generation(pool="main", number=1, name="main", plan=plan(tp=1))
ORDER = Order(replicas=1, restore=2, floor=100.0, below_floor=True)
SECOND = following(FIRST, number=2, app="app", plan=plan(tp=2), order=ORDER)


def state(name: str, *, target: int, answering: int = 0, **more: object) -> DeploymentState:
    there = DeploymentState(
        name=name,
        status="HEALTHY",
        target=target,
        running=answering,
        starting=0,
        message="",
        answering=frozenset(f"{name}{n}" for n in range(answering)),
        replicas=tuple(
            ServeReplica(replica_id=f"{name}{n}", state="RUNNING") for n in range(answering)
        ),
    )
    return replace(there, **more)  # type: ignore[arg-type]


def states(*found: DeploymentState) -> dict[str, DeploymentState]:
    return {each.name: each for each in found} | {"gateway": state("gateway", target=1)}


def second(*, target: int, answering: int = 0, **more: object) -> DeploymentState:
    return state(
        SECOND.name, target=target, answering=answering, **{"origin": SECOND.origin(), **more}
    )


def test_without_later_generations_the_first_serves() -> None:
    found = standing(FIRST, states(state("main", target=0)))
    assert (found.current, found.successor, found.last) == (FIRST, None, 1)


def test_a_later_one_beside_replicas_of_the_first_is_taking_over() -> None:
    both = states(state("main", target=1, answering=1), second(target=1))
    found = standing(FIRST, both)
    assert (found.current, found.successor, found.last) == (FIRST, SECOND, 2)


def test_plan_and_order_are_read_back_as_they_were() -> None:
    found = standing(FIRST, states(state("main", target=0), second(target=1, answering=1)))
    assert (found.current, found.successor) == (SECOND, None)
    assert found.current.plan == SECOND.plan
    assert found.current.order == ORDER


def test_through_a_gap_the_one_that_has_not_answered_has_not_taken_over() -> None:
    found = standing(FIRST, states(state("main", target=0), second(target=1)))
    assert (found.current, found.successor) == (FIRST, SECOND)


def test_a_pool_that_sleeps_keeps_its_layout() -> None:
    found = standing(FIRST, states(state("main", target=0), second(target=0)))
    assert (found.current, found.successor) == (SECOND, None)


def test_one_that_is_being_deleted_counts_only_for_the_next_number() -> None:
    there = states(state("main", target=1, answering=1), second(target=1, status="DELETING"))
    found = standing(FIRST, there)
    assert (found.current, found.successor, found.last) == (FIRST, None, 2)


def test_one_of_which_serve_has_not_yet_said_anything_is_not_looked_at() -> None:
    there = states(state("main", target=1, answering=1), second(target=0, origin={}))
    found = standing(FIRST, there)
    assert (found.successor, found.whole) == (None, False)
