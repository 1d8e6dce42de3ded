from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.model.plan import load_plan
from serving.instance import Instance
from serving.layout import layout_desk
from serving.layout.layout_desk import LayoutDesk
from tests.serving.plans import plan


class Controller:
    """Answers as `said` says."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.layout: dict[str, Any] | None = {"number": 1, "plan": None, "move": None}

    def __call__(self, method: str, *arguments: Any, **named: Any) -> Any:
        self.asked.append((method, arguments, named))
        return self.layout if method == "layout" else {"steps": ["one"], "number": 2}


def test_an_order_is_taken_once_and_answered_to_who_gave_it(tmp_path: Path) -> None:
    instance, controller = Instance(tmp_path), Controller()
    desk = LayoutDesk(instance)
    order = layout_desk.order(instance, plan(tp=2), method="begin_move", below_floor=True)
    assert layout_desk.answer(instance, order) is None
    for _ in range(2):
        desk.serve(controller)
    assert controller.asked[0] == ("begin_move", (plan(tp=2).dumps(),), {"below_floor": True})
    assert [method for method, _, _ in controller.asked].count("begin_move") == 1
    answer = layout_desk.answer(instance, order)
    assert answer is not None
    assert (answer["steps"], answer["number"]) == (["one"], 2)
    assert layout_desk.answer(instance, "another") is None


def test_the_plan_in_force_and_the_move_are_written_down(tmp_path: Path) -> None:
    instance, controller = Instance(tmp_path), Controller()
    instance.replace("plan.json", plan().dumps())
    desk = LayoutDesk(instance)
    controller.layout = {"number": 2, "plan": plan(tp=2).dumps(), "move": {"phase": "done"}}
    desk.serve(controller)
    assert load_plan(instance.plan_path) == plan(tp=2)
    assert layout_desk.move(instance) == {"phase": "done"}
    desk.serve(controller)
    assert controller.asked[-1][1] == (2,)


def test_a_controller_whose_layout_is_fixed_writes_nothing(tmp_path: Path) -> None:
    instance, controller = Instance(tmp_path), Controller()
    controller.layout = None
    LayoutDesk(instance).serve(controller)
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_service_left_is_not_taken_for_an_order(tmp_path: Path) -> None:
    instance, controller = Instance(tmp_path), Controller()
    layout_desk.order(instance, plan(tp=2), method="begin_move", below_floor=False)
    LayoutDesk(instance).serve(controller)
    assert [method for method, _, _ in controller.asked] == ["layout"]
