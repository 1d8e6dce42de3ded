from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.controller import ControllerState, step
from autoscaler.params import Mode
from serving.control.controller_actor import ControllerActor, ControllerSpec
from serving.messages import GatewayReport
from tests.autoscaler.build import main_only, params
from tests.serving.fakes import report

GATEWAY = GatewayReport(
    gateway_id="g", address="h:1", sent_s=0.0, loads=(), in_flight={}, charged={}
)


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
    account = {sample.name: sample.value for sample in told.account}
    assert account["shardwise_maximum_replicas"] == p.main.maximum
    assert account["shardwise_controller_trouble"] == 0
