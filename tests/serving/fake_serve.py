"""Serve as a move sees it: applications whose replicas start and end when they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cluster.errors import UnavailableError
from cluster.ray_backend.node_supply import NO_SUPPLY, NodeSupply
from serving.control.scaler import DeploymentState, ServeReplica
from serving.layout.generations import Generation
from serving.messages import ReplicaReport
from tests.serving.fakes import report


@dataclass
class App:
    """`devices`: of a replica. `fails`: its replicas do not start."""

    devices: int
    target: int
    replicas: list[str] = field(default_factory=list)
    fails: bool = False
    origin: Mapping[str, object] = field(default_factory=dict)


class FakeNodes:
    """Ray's autoscaler. `add`: brings a node of so many devices. `left`: how many it may yet add.

    `slow`: it never brings them. `names`: of what is asked for and waits. `withdrawn`: how often.
    """

    def __init__(self, add: Callable[[int], None]) -> None:
        self._add = add
        self.left: int | None = None
        self.slow = False
        self.names: frozenset[str] = frozenset()
        self.withdrawn = 0
        self._looked = 0

    def supply(self) -> NodeSupply:
        if self.left is None:
            return NO_SUPPLY
        self._looked += 1
        refused = frozenset() if self.slow else self.names
        return NodeSupply(manages=True, looked=self._looked, refused=refused, doing="1 x engine")

    def ask(self, generation: Generation, *, replicas: int) -> str:
        assert self.left is not None
        came = 0 if self.slow else min(self.left, replicas)
        for _ in range(came):
            self._add(_devices(generation))
        self.left -= came
        self.names = frozenset(f"group-{number}" for number in range(came, replicas))
        return f"{replicas} x {_devices(generation)} device(s)"

    def waiting(self) -> frozenset[str]:
        return self.names

    def withdraw(self) -> None:
        self.names = frozenset()
        self.withdrawn += 1


class FakeServe:
    """Nodes of `devices` devices each. `log`: what was asked of it, in order."""

    def __init__(self, first: Generation, *, replicas: int, devices: int) -> None:
        self.devices = {"node": devices}
        self.nodes = FakeNodes(self._add)
        self.apps = {first.name: App(devices=_devices(first), target=replicas)}
        self.failing: set[int] = set()
        self.log: list[str] = []
        self.away = 0
        self._places: dict[str, str] = {}
        self._settle()

    async def states(self) -> dict[str, DeploymentState]:
        if self.away:
            self.away -= 1
            raise UnavailableError("Serve is away")
        self._settle()
        return {name: self._state(name, app) for name, app in self.apps.items()}

    async def scale(self, deployment: str, replicas: int) -> None:
        self.log.append(f"{deployment}: {replicas}")
        self.apps[deployment].target = replicas

    def start(self, generation: Generation, *, replicas: int) -> None:
        self.log.append(f"deploy {generation.name}: {replicas}")
        self.apps[generation.name] = App(
            devices=_devices(generation),
            target=replicas,
            fails=generation.number in self.failing,
            origin=generation.origin(),
        )

    def delete(self, generation: Generation) -> None:
        self.log.append(f"delete {generation.name}")
        del self.apps[generation.name]

    def free(self) -> dict[str, float]:
        return {node: float(self._left(node)) for node in self.devices}

    def reports(self) -> dict[str, ReplicaReport]:
        names = [name for app in self.apps.values() for name in app.replicas]
        return {name: report(name, sent_s=0.0) for name in names}

    def _settle(self) -> None:
        for app in self.apps.values():
            del app.replicas[app.target :]
            while len(app.replicas) < app.target and not app.fails:
                node = next((n for n in self.devices if self._left(n) >= app.devices), None)
                if node is None:
                    break
                name = f"r{len(self._places) + 1}"
                self._places[name] = node
                app.replicas.append(name)

    def _left(self, node: str) -> int:
        held = [
            app.devices
            for app in self.apps.values()
            for name in app.replicas
            if self._places[name] == node
        ]
        return self.devices[node] - sum(held)

    def _add(self, devices: int) -> None:
        self.log.append(f"node of {devices}")
        self.devices[f"node-{len(self.devices) + 1}"] = devices

    def _state(self, name: str, app: App) -> DeploymentState:
        return DeploymentState(
            name=name,
            status="DEPLOY_FAILED" if app.fails and app.target else "HEALTHY",
            target=app.target,
            running=len(app.replicas),
            starting=app.target - len(app.replicas),
            message="ValueError: no such argument" if app.fails else "",
            answering=frozenset(app.replicas),
            replicas=tuple(
                ServeReplica(replica_id=name, state="RUNNING", node_id=self._places[name])
                for name in app.replicas
            ),
            origin=app.origin,
        )


def _devices(generation: Generation) -> int:
    return generation.plan.main.layout.to_layout(replicas=1).devices_per_replica
