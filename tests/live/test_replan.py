"""The layout changes while callers are served: nothing is lost, and what fails leads back.

The engines are scripted, everything else is real; `test_replan_engines.py` has real ones.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.live.callers import under_load
from tests.live.instance import until
from tests.live.scripted_instance import SLOTS, ScriptedInstance, scripted_instance

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

CORES = 6  # as Ray sees it, and the plan
BOUNDS = {"minimum": 1, "initial": 1, "maximum": CORES}
DEVICES = {"device": "cpu", "device_kind": "cpu", "nodes": 1, "devices_per_node": CORES}
CLUSTER = {"cluster": {"spec": f"1x{CORES}xcpu", **DEVICES}}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstance]:
    # One replica under any load: only layouts change here.
    steering = {"mode": "advisory", "replan": {"canary_s": 20.0}}
    home = tmp_path_factory.mktemp("home")
    with scripted_instance(
        home, replicas=BOUNDS, steering=steering, plan_changes=CLUSTER
    ) as instance:
        yield instance


def plan_like(
    service: ScriptedInstance, path: Path, *, tp: int = 3, pp: int = 1, **engine_args: Any
) -> Path:
    plan = json.loads(service.state.plan_path.read_text())
    (pool,) = plan["pools"]
    slots = SLOTS * tp * pp
    pool["layout"] |= {"tp": tp, "moe_tp": tp, "pp": pp, "max_num_seqs": slots}
    pool["engine_args"] |= {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    pool["engine_args"] |= {"max_num_seqs": slots, **engine_args}
    pool["replicas"] = {"minimum": 1, "initial": 1, "maximum": CORES // (tp * pp)}
    path.write_text(json.dumps(plan))
    return path


def layout(service: ScriptedInstance) -> str:
    return str(service.status()["replan"]["layouts"]["main"])


@pytest.mark.parametrize("fault", ["start", "mute"])
def test_a_layout_that_does_not_answer_is_given_up(
    service: ScriptedInstance, tmp_path: Path, fault: str
) -> None:
    before = service.state.plan_path.read_text()
    plan = plan_like(service, tmp_path / "plan.json", scripted_fault=fault)
    with under_load(service.url):
        moved = service.command("replan", "--plan", str(plan))
    print(moved.stdout, moved.stderr)
    assert moved.returncode == 4
    assert "rolled back" in moved.stderr
    assert ("told not to start" if fault == "start" else "told to say nothing") in moved.stderr
    assert (service.pool("main")["ready"], layout(service)) == (1, "TP1")
    assert service.state.plan_path.read_text() == before


def test_streams_go_on_while_the_layout_changes(service: ScriptedInstance, tmp_path: Path) -> None:
    plan = plan_like(service, tmp_path / "plan.json")
    with under_load(service.url):
        moved = service.command("replan", "--plan", str(plan))
    print(moved.stdout, moved.stderr)
    assert moved.returncode == 0, moved.stderr
    until(lambda: layout(service) == "TP3", limit_s=60, what="status shows the layout")
    assert service.pool("main")["ready"] == 1
    assert "TP3" in service.command("status").stdout
    assert json.loads(service.state.plan_path.read_text())["pools"][0]["layout"]["tp"] == 3
    replayed = service.command("replay", str(service.state.decisions_path))
    assert replayed.returncode == 0, replayed.stdout


def test_what_would_be_done_is_shown_and_not_done(
    service: ScriptedInstance, tmp_path: Path
) -> None:
    plan = plan_like(service, tmp_path / "plan.json", tp=1)
    shown = service.command("replan", "--plan", str(plan), "--dry-run")
    print(shown.stdout, shown.stderr)
    assert shown.returncode == 0, shown.stderr
    assert "start 1 replica(s) of the new layout" in shown.stdout
    assert layout(service) == "TP3"
    searched = service.command("replan", "--dry-run")
    print(searched.stdout, searched.stderr)
    assert searched.returncode == 0, searched.stderr
    assert "prompt tokens" in searched.stdout
    assert "found: TP" in searched.stdout


def test_the_only_replica_is_not_given_up_for_one_that_has_no_room(
    service: ScriptedInstance, tmp_path: Path
) -> None:
    plan = plan_like(service, tmp_path / "plan.json", pp=2)
    with under_load(service.url):
        refused = service.command("replan", "--plan", str(plan))
    assert refused.returncode == 2
    assert "there is no way to the new layout" in refused.stderr
    assert "--allow-below-floor" in refused.stderr


def test_a_move_through_a_gap_goes_on_when_its_controller_is_killed(
    service: ScriptedInstance, tmp_path: Path
) -> None:
    plan = plan_like(service, tmp_path / "plan.json", pp=2, scripted_start_s=8.0)

    before = serve_apps(service)
    killed: list[int] = []

    def kill_controller() -> None:
        until(lambda: serve_apps(service) != before, limit_s=180, what="the new one is deployed")
        for process in psutil.Process(service.state.head().pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "ControllerActor" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)

    killer = threading.Thread(target=kill_controller)
    with under_load(service.url):
        killer.start()
        moved = service.command("replan", "--plan", str(plan), "--allow-below-floor")
        killer.join()
    print(moved.stdout, moved.stderr)
    assert moved.returncode == 0, moved.stderr
    until(lambda: layout(service) == "TP3 PP2", limit_s=60, what="status shows the layout")
    assert killed
    assert len(serve_apps(service)) == 2, "the gateways' and the one that serves"
    replayed = service.command("replay", str(service.state.decisions_path))
    assert replayed.returncode == 0, replayed.stdout


def serve_apps(service: ScriptedInstance) -> frozenset[str]:
    """The applications that Serve has."""
    token = Path.home() / ".ray" / "auth_token"
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.is_file() else {}
    url = f"http://{service.progress()['dashboard']}/api/serve/applications/"
    return frozenset(httpx.get(url, headers=headers, timeout=30.0).json()["applications"])
