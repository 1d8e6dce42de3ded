"""Serve as a move sees it: applications whose replicas start and end when they are looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.errors import UnavailableError
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


class FakeServe:
    """One node of `devices` devices. `log`: what was asked of it, in order."""

    def __init__(self, first: Generation, *, replicas: int, devices: int) -> None:
        self.devices = devices
        self.apps = {first.name: App(devices=_devices(first), target=replicas)}
        self.failing: set[int] = set()
        self.log: list[str] = []
        self.away = 0
        self._born = 0
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
        return {"node": float(self._left())}

    def reports(self) -> dict[str, ReplicaReport]:
        names = [name for app in self.apps.values() for name in app.replicas]
        return {name: report(name, sent_s=0.0) for name in names}

    def _settle(self) -> None:
        for app in self.apps.values():
            del app.replicas[app.target :]
            while len(app.replicas) < app.target and not app.fails and self._left() >= app.devices:
                self._born += 1
                app.replicas.append(f"r{self._born}")

    def _left(self) -> int:
        return self.devices - sum(app.devices * len(app.replicas) for app in self.apps.values())

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
                ServeReplica(replica_id=name, state="RUNNING", node_id="node")
                for name in app.replicas
            ),
            origin=app.origin,
        )


def _devices(generation: Generation) -> int:
    return generation.plan.main.layout.to_layout(replicas=1).devices_per_replica
