import math
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.controller import ControllerState, step
from autoscaler.params import Mode
from serving.control.controller_actor import ControllerActor, ControllerSpec
from serving.control.observe import Heard
from serving.keeper.account import Kept, ReplicaUse
from serving.keeper.keeping import nodes_seen
from serving.messages import GatewayReport, NodesSeen
from tests.autoscaler.build import main_only, params
from tests.serving.fakes import report

GATEWAY = GatewayReport(
    gateway_id="g", address="h:1", sent_s=0.0, loads=(), in_flight={}, charged={}
)


def test_gateways_are_told_of_the_replicas_that_report() -> None:
    heard = Heard()
    heard.replicas = {"a": report("a", sent_s=0.0)}
    heard.kept = Kept(uses={"a": ReplicaUse(host_bytes=5.0), "starting": ReplicaUse()})
    heard.kept.counts["processes"] = 3
    told = nodes_seen(heard, retired={"main": 2})
    pool, host, device = told.memory["a"]
    assert (pool, host, math.isnan(device)) == ("main", 5.0, True)
    assert set(told.memory) == {"a"}
    assert (told.swept_processes, told.retired) == (3, {"main": 2})
    assert NodesSeen() == nodes_seen(Heard(), retired={})


@pytest.mark.parametrize(("mode", "offered"), [(Mode.ACTIVE, {"b"}), (Mode.ADVISORY, {"a", "b"})])
async def test_a_replica_that_is_being_retired_is_not_offered(
    tmp_path: Path, mode: Mode, offered: set[str]
) -> None:
    p = params(mode=mode)
    actor = ControllerActor(
        ControllerSpec(
            params=p,
            deployments={"main": "main"},
            dashboard_url="http://127.0.0.1:1",
            app="app",
            token=None,
            log_path=str(tmp_path / "decisions.jsonl"),
        ),
        node=lambda: "here",
    )
    actor._ticking.cancel()
    for name in ("a", "b"):
        await actor.observe_replica(report(name, sent_s=0.0))
    result = step(ControllerState(), main_only(0.0), p)
    actor._last = replace(result, left_out=frozenset({"a"}))
    told = await actor.exchange(GATEWAY)
    assert told.replicas is not None
    assert {replica.replica_id for replica in told.replicas} - told.closed == offered
