"""Ray's head is lost and started anew from its Redis: what serves goes on, then steering does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.live.bare_cluster import BareCluster
from tests.live.callers import under_load
from tests.live.chart_service import Service, plan_of
from tests.live.instance import link_models, until
from tests.live.pods import Pod, Pods, pods

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

GATEWAYS = 2  # the chart's default
ENGINES = 2
NEW_NODES = 3  # one for the lost replica, two for as many as another layout may need at once
AWAY_S = 15.0  # requests of 6 s and short ones begin and end meanwhile


@dataclass
class Served:
    """A RayService on nodes of its own: a replica on each of two, no room for a third."""

    pods: Pods
    service: Service
    head: Pod
    engines: list[Pod]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    home = tmp_path / "home"
    home.mkdir()
    link_models(home)
    with pods(home) as made:
        head = made.start_head()
        cluster = BareCluster(made.dashboard, made.token)
        until(cluster.listens, limit_s=120, what="the head's dashboard listens")
        for _ in range(GATEWAYS):
            made.start_worker(cpus=0, resources='{"shardwise-gateway": 1}')
        engines = [made.start_worker(cpus=1) for _ in range(ENGINES)]
        service = Service(tmp_path, cluster, scripted=True)
        service.install(plan_of(1, replicas=ENGINES))
        assert service.settled().startswith("RUNNING")
        until(lambda: _ready(service) == ENGINES, limit_s=60, what="both replicas are ready")
        yield Served(made, service, head, engines)


def test_without_a_head_answers_go_on_and_its_successor_steers(served: Served) -> None:
    service = served.service
    with under_load(service.url) as callers:
        served.head.kill()
        before = callers.answered
        time.sleep(AWAY_S)
        served.engines[0].kill()  # and nobody is there to replace it
        time.sleep(AWAY_S)
        print(f"{callers.answered - before} answers in {2 * AWAY_S:.0f} s without a head")
        assert callers.answered > before
        began_s = time.monotonic()
        served.pods.start_head()
        until(lambda: _ready(service) == ENGINES - 1, limit_s=300, what="the controller is back")
        print(f"the controller is back {time.monotonic() - began_s:.0f} s after the head's start")
        for _ in range(NEW_NODES):
            served.pods.start_worker(cpus=3)
        took_s = until(
            lambda: _ready(service) == ENGINES, limit_s=300, what="the replica is replaced"
        )
        print(f"the lost replica is replaced {took_s:.0f} s after its node's start")
        # Ray notices late that a node is dead which died while there was no head.
        nodes = GATEWAYS + ENGINES - 1 + NEW_NODES
        until(lambda: service.cluster.workers() == nodes, limit_s=120, what=f"{nodes} nodes live")
        service.install(plan_of(3))
        told = service.settled()
        assert told.startswith("RUNNING"), told
        assert service.layout() == "TP3"


def _ready(service: Service) -> int | None:
    """Replicas by the controller's word, None while there is none."""
    try:
        (pool,) = service.status()["pools"]
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    return pool["ready"]
