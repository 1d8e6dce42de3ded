"""How does an order to change the layout reach the controller, and how is its move followed?

Through files of the instance's directory: who may write there may order, and nobody else. The head
process takes an order to the controller, writes down its answer and how far the move is, and keeps
the plan that is being served in the place where `up` and `status` look for it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from cluster.model.plan import Plan
from serving.instance import Instance

# Asks the controller: name of a method, its arguments.
Ask = Callable[..., Any]
Method = Literal["begin_move", "preview_move"]

_ORDER, _ANSWER, _MOVE = "replan-order.json", "replan-answer.json", "move.json"


class LayoutDesk:
    """The head's side."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._known = 1
        self._move: dict[str, Any] | None = None
        for name in (_ORDER, _ANSWER, _MOVE):
            (instance.directory / name).unlink(missing_ok=True)

    def serve(self, ask: Ask) -> None:
        """Take what was ordered to the controller, and look how far it is."""
        order = _read(self._instance.directory / _ORDER)
        if order is not None:
            (self._instance.directory / _ORDER).unlink(missing_ok=True)
            answer = ask(order["method"], order["plan"], below_floor=order["below_floor"])
            self._instance.replace(_ANSWER, json.dumps({**answer, "id": order["id"]}))
        layout = ask("layout", self._known)
        if layout is None:
            return
        if layout["plan"] is not None:
            self._instance.replace(self._instance.plan_path.name, layout["plan"])
            self._known = layout["number"]
        if layout["move"] != self._move:
            self._move = layout["move"]
            self._instance.replace(_MOVE, json.dumps(self._move))


def order(instance: Instance, plan: Plan, *, method: Method, below_floor: bool) -> str:
    """Leave an order; returns its id. `preview_move`: only asks for the steps."""
    order_id = uuid.uuid4().hex
    data = {"method": method, "plan": plan.dumps(), "below_floor": below_floor, "id": order_id}
    instance.replace(_ORDER, json.dumps(data))
    return order_id


def answer(instance: Instance, order_id: str) -> dict[str, Any] | None:
    """What the controller has said to an order; None: nothing yet.

    `steps`, and the move's `number`; or `error` and `exit_code`.
    """
    found = _read(instance.directory / _ANSWER)
    return found if found is not None and found["id"] == order_id else None


def move(instance: Instance) -> dict[str, Any] | None:
    """How far the last move is; see `serving.layout.layouts.MoveProgress`."""
    return _read(instance.directory / _MOVE)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] | None = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data
