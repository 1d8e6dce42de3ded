"""Another layout needs nodes that are not up: Ray's autoscaler is asked for them, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.callers import under_load
from tests.live.chart_service import Service, plan_of
from tests.live.growing_cluster import growing_cluster
from tests.live.instance import link_models, until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]


def test_a_layout_without_room_gets_a_node_if_there_may_be_one_more(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    link_models(tmp_path / "home")
    with growing_cluster(tmp_path / "home", nodes=1) as cluster:
        service = Service(tmp_path, cluster, scripted=True)
        service.install(plan_of(1))  # one of the three cores of the node that comes for it
        assert service.settled().startswith("RUNNING")
        with under_load(service.url):
            service.install(plan_of(3))
            told = service.settled()
            assert told.startswith("DEPLOY_FAILED")
            assert "Ray's autoscaler was asked for 1 x 3 {'CPU': 1.0} (STRICT_PACK)" in told
            assert "has no node, nor may add one" in told
            assert service.layout() == "TP1"
            service.install(plan_of(1))  # helm rollback
            assert service.settled().startswith("RUNNING")
            cluster.allow(2)
            service.install(plan_of(3))
            assert service.settled().startswith("RUNNING")
            assert service.layout() == "TP3"
        # The old replica's node goes, so nothing is asked for any more.
        until(lambda: cluster.workers() == 1, limit_s=90, what="the autoscaler takes a node away")
