"""Which generation of a pool serves, and does another one take over?

The first generation of a pool is a deployment of the gateways' application; each later one, with
another layout, is an application of its own. What a generation is stands in its deployment, where
Serve keeps it (`user_config`): its number, its plan, and the order under which it takes over. So a
controller that starts anew finds both the layout in force and a move half done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from cluster.model.plan import Plan, parse_plan
from serving.control.scaler import DeploymentState


@dataclass(frozen=True, kw_only=True)
class Order:
    """A move to another layout. `replicas`: of the new one. `restore`: of the old one, on failure.

    `floor`: predicted tokens/s that must be carried throughout, unless `below_floor` allows a gap.
    `wanted`: digest of the plan that the operator gave last.
    """

    replicas: int
    restore: int
    floor: float
    below_floor: bool
    wanted: str = ""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A pool's deployment under one layout. `name`: as `ServeScaler` calls it.

    `order`: None for the first.
    """

    pool: str
    number: int
    name: str
    plan: Plan
    order: Order | None = None

    @property
    def wanted(self) -> str:
        """Digest of the plan that the operator gave last."""
        return digest(self.plan) if self.order is None else self.order.wanted

    def origin(self) -> dict[str, Any]:
        """What its deployment says of itself."""
        assert self.order is not None
        return {"number": self.number, "plan": self.plan.dumps(), "order": asdict(self.order)}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The generation in force, and the one that takes over, if one does. `last`: highest number.

    `whole`: Serve has said of each what it is.
    """

    current: Generation
    successor: Generation | None
    last: int
    whole: bool = True


def standing(first: Generation, states: Mapping[str, DeploymentState]) -> Standing:
    """What Serve's states say of a pool's generations.

    In force is the oldest that has, or is to have, replicas; the newest if none has.
    """
    listed = [
        (number, name, state)
        for name, state in states.items()
        if (number := _number(name, first)) is not None
    ]
    there = sorted((number, name) for number, name, state in listed if not ending(state))
    read = [_generation(number, name, first, states[name]) for number, name in there]
    found = [generation for generation in read if generation is not None]
    if not found:
        return Standing(current=first, successor=None, last=first.number)
    busy = [g for g in found if states[g.name].target or states[g.name].replicas]
    current, newest = (busy or found[-1:])[0], found[-1]
    state = states[newest.name]
    if current is newest and len(found) > 1 and state.target and not state.answering:
        current = found[-2]  # through a gap: the newest has yet to prove itself
    return Standing(
        current=current,
        successor=None if newest is current else newest,
        last=max(number for number, _, _ in listed),
        whole=len(found) == len(read),
    )


def digest(plan: Plan) -> str:
    """What tells one plan from another."""
    return hashlib.sha256(plan.dumps().encode()).hexdigest()


def following(
    previous: Generation, *, number: int, app: str, plan: Plan, order: Order
) -> Generation:
    """The generation that is to take over from `previous`."""
    name = f"{app}-{previous.pool}-{number}"
    return Generation(pool=previous.pool, number=number, name=name, plan=plan, order=order)


def ending(state: DeploymentState) -> bool:
    """Whether Serve is deleting it."""
    return state.status == "DELETING"


def _number(name: str, first: Generation) -> int | None:
    if name == first.name:
        return first.number
    head, _, number = name.rpartition("-")
    return int(number) if head.endswith(f"-{first.pool}") and number.isdecimal() else None


def _generation(
    number: int, name: str, first: Generation, state: DeploymentState
) -> Generation | None:
    """None while Serve has not yet said what it is."""
    if name == first.name:
        return first
    if not state.origin:
        return None
    text = json.dumps(state.origin, sort_keys=True)
    plan, order = _read(text)
    return Generation(pool=first.pool, number=number, name=name, plan=plan, order=order)


@lru_cache(maxsize=8)
def _read(text: str) -> tuple[Plan, Order]:
    """Read at every tick, parsed once."""
    origin = json.loads(text)
    return parse_plan(origin["plan"], source="the deployment"), Order(**origin["order"])
