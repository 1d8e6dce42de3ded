"""Values that cannot be installed: refused at render, with the value, its limit and the fix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helm.chart import HelmRefusedError, render
from tests.helm.plans import changed, plan, pool

PLAN = plan()
STEPS = {"strategy": "NewClusterWithIncrementalUpgrade"}
IN_STEPS = {**STEPS, "incremental": {"gatewayClassName": "istio"}}
POOL = ("pools", 0)

# The plan; the values; what names the value, and what names the fix.
PLANS: dict[str, tuple[str | None, str, str]] = {
    "none": (None, "plan is empty", "--set-file plan=plan.json"),
    "no JSON": ("pools: []", "plan is no JSON", "pass the file that `shardwise plan --out`"),
    "another file": ('{"a": 1}', "plan is without cluster", "pass the file that `shardwise plan"),
    "another version": (changed(PLAN, "version", to=2), "plan.version is 2", "make the plan again"),
    "data parallel": (
        changed(PLAN, *POOL, "layout", "dp", to=2),
        "plan.pools.main.layout.dp is 2",
        "plan with --max-dp 1",
    ),
    "cut operators": (
        changed(PLAN, *POOL, "layout", "dims", to={"ffn": {}}),
        "plan.pools.main.layout.dims is ffn",
        "plan with --engine vllm",
    ),
    "wider than a node": (
        plan(pool(tp=16)),
        "plan.pools.main.layout.tp is 16, a tensor group stays on one node, which has 8",
        "plan again",
    ),
    "a directory of this machine": (
        changed(PLAN, *POOL, "model", "source", to="/home/me/model"),
        "plan.pools.main.model.source is /home/me/model",
        "--model-source /models/",
    ),
    "more than the cluster": (
        changed(PLAN, *POOL, "replicas", "maximum", to=5),
        "would take 20 devices, its cluster has 16",
        "--max-replicas",
    ),
}

VALUES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no image": ({"image": {"repository": ""}}, "image.repository is empty", "build docker"),
    "no tag": ({"image": {"tag": ""}}, "image.tag is empty", "set the tag of a release"),
    "moving tag": ({"image": {"tag": "latest"}}, "image.tag is latest", "set the tag of a release"),
    "no digest": ({"image": {"digest": "abc"}}, "image.digest is abc", "write sha256: and 64"),
    "a name too long": (
        {"fullnameOverride": "a" * 48},
        "KubeRay takes 47 characters at most",
        "choose a shorter one",
    ),
    "no access": ({"access": {"anyone": False}}, "access is empty", "`shardwise key NAME`"),
    "two accesses": ({"access": {"keys": "keys: []"}}, "access is keys and anyone", "exactly one"),
    "port twice": (
        {"config": {"http": {"port": 9000}}},
        "config.http.port is 9000, the chart sets it",
        "gateway.port",
    ),
    "keys twice": (
        {"config": {"access": {"keys_file": "/keys"}}},
        'config.access is {"keys_file":"/keys"}',
        "access.existingSecret",
    ),
    "port of root": ({"gateway": {"port": 80}}, "gateway.port is 80", "choose one there"),
    "port of Ray": ({"gateway": {"port": 8265}}, "gateway.port is 8265", "choose another"),
    "no gateway": ({"gateway": {"count": 0}}, "gateway.count is 0", "set 1 or more"),
    "unknown pool": (
        {"workers": {"devicesPerPod": {"mian": 8}}},
        "workers.devicesPerPod is mian, the plan's pools are main",
        "name one of them",
    ),
    "pods too small": (
        {"workers": {"devicesPerPod": {"main": 2}}},
        "workers.devicesPerPod.main is 2, a replica has 4 devices on a node",
        "set that at least",
    ),
    "pods too large": (
        {"workers": {"devicesPerPod": {"main": 16}}},
        "workers.devicesPerPod.main is 16, nodes of the plan have 8",
        "set that at most",
    ),
    "no device": ({"workers": {"deviceResource": ""}}, "deviceResource is empty", "nvidia.com/gpu"),
    "no cores": ({"workers": {"cpuPerDevice": 0}}, "workers.cpuPerDevice is 0", "set 1 or more"),
    "no memory": ({"workers": {"memoryGiPerDevice": 0}}, "memoryGiPerDevice is 0", "1 or more"),
    "unknown strategy": ({"upgrade": {"strategy": "Rolling"}}, "is Rolling", "NewCluster, NewC"),
    "old cluster too short": (
        {"upgrade": {"deletionDelaySeconds": 60}},
        "deletionDelaySeconds is 60, answers of 900 s",
        "set more than that",
    ),
    "steps without class": (
        {"upgrade": STEPS},
        "upgrade.incremental.gatewayClassName is empty",
        "kubectl get gatewayclass",
    ),
    "step above surge": (
        {
            "upgrade": {
                **STEPS,
                "incremental": {
                    "gatewayClassName": "istio",
                    "stepSizePercent": 60,
                    "maxSurgePercent": 50,
                },
            }
        },
        "stepSizePercent is 60, it is 1 to maxSurgePercent, 50",
        "set a smaller step",
    ),
    "surge above all": (
        {
            "upgrade": {
                **STEPS,
                "incremental": {"gatewayClassName": "istio", "maxSurgePercent": 150},
            }
        },
        "maxSurgePercent is 150",
        "set 100",
    ),
    "steps at once": (
        {
            "upgrade": {
                **STEPS,
                "incremental": {"gatewayClassName": "istio", "intervalSeconds": 0},
            }
        },
        "intervalSeconds is 0",
        "set 1 or more",
    ),
    "steps and ingress": (
        {"upgrade": IN_STEPS, "ingress": {"enabled": True, "host": "a.b"}},
        "ingress.enabled is true, an upgrade in steps has KubeRay's own",
        "upgrade.strategy=NewCluster",
    ),
    "steps and service monitor": (
        {"upgrade": IN_STEPS, "monitoring": {"scrape": "ServiceMonitor"}},
        "monitoring.scrape is ServiceMonitor",
        "monitoring.scrape=PodMonitor",
    ),
    "no redis": (
        {"gcs": {"redis": {"inChart": {"enabled": False}}}},
        "gcs.redis is address empty, inChart.enabled false",
        "gcs.redis.inChart.enabled=true",
    ),
    "two redis": (
        {"gcs": {"redis": {"address": "redis:6379"}}},
        "gcs.redis is address redis:6379, inChart.enabled true",
        "exactly one",
    ),
    "redis as a URL": (
        {"gcs": {"redis": {"address": "redis://redis:6379", "inChart": {"enabled": False}}}},
        "gcs.redis.address is redis://redis:6379",
        "write it as redis.databases:6379",
    ),
    "unknown cache": ({"modelCache": {"kind": "nfs"}}, "is nfs", "choose emptyDir, pvc or"),
    "no claim": ({"modelCache": {"kind": "pvc"}}, "modelCache.pvc is", "pvc.existingClaim or"),
    "no path": (
        {"modelCache": {"kind": "hostPath", "hostPath": {"path": "models"}}},
        "modelCache.hostPath.path is models",
        "such as /mnt/models",
    ),
    "ingress for all": ({"ingress": {"enabled": True}}, "ingress.host is empty", "set the host"),
    "route on nothing": ({"httpRoute": {"enabled": True}}, "parentRefs is empty", "name one"),
    "operator shut out": (
        {"networkPolicy": {"operatorNamespace": ""}},
        "networkPolicy.operatorNamespace is empty",
        "networkPolicy.enabled=false",
    ),
    "unknown scrape": ({"monitoring": {"scrape": "all"}}, "is all", "choose PodMonitor"),
    "job without command": ({"searchJob": {"enabled": True}}, "arguments is empty", "set e.g."),
    "job of another kind": (
        {"searchJob": {"enabled": True, "arguments": ["up"]}},
        "searchJob.arguments is up",
        "begin with search, calibrate or simulate",
    ),
    "two priority classes": (
        {"priorityClass": {"create": True, "name": "high"}},
        "priorityClass.name is high",
        "set one of the two",
    ),
    "no account": (
        {"serviceAccount": {"create": False}},
        "serviceAccount.head is empty",
        "name an account",
    ),
    "no version": ({"rayVersion": "nightly"}, "rayVersion is nightly", "such as 2.60.0"),
}

# By the schema: what is there, by its path.
SCHEMA: dict[str, tuple[dict[str, Any], str]] = {
    "unknown value": ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    "unknown value below": (
        {"gateway": {"replicas": 3}},
        "at '/gateway': additional properties 'replicas' not allowed",
    ),
    "wrong type": ({"gateway": {"count": "two"}}, "at '/gateway/count': got string, want integer"),
    "wrong choice": (
        {"rayAuth": {"mode": "none"}},
        "at '/rayAuth/mode': value must be one of 'token', 'disabled'",
    ),
    "unknown setting": (
        {"config": {"limits": {"max_queue": 3}}},
        "at '/config/limits': additional properties 'max_queue' not allowed",
    ),
    "setting out of range": (
        {"config": {"limits": {"max_queued": 0}}},
        "at '/config/limits/max_queued': minimum: got 0, want 1",
    ),
}


def refusal(folder: Path, values: dict[str, Any], text: str | None) -> str:
    with pytest.raises(HelmRefusedError) as refused:
        render(folder, values, plan=text)
    return re.sub(r"\s+", " ", str(refused.value))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_cannot_be_served_is_refused(tmp_path: Path, name: str) -> None:
    text, value, fix = PLANS[name]
    said = refusal(tmp_path, {}, text)
    assert value in said
    assert fix in said.partition("Fix:")[2] or fix in said


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_is_refused(tmp_path: Path, name: str) -> None:
    values, value, fix = VALUES[name]
    said = refusal(tmp_path, values, PLAN)
    assert value in said
    assert "Fix:" in said
    assert fix in said


@pytest.mark.parametrize("name", SCHEMA)
def test_the_schema_refuses_what_is_not_known(tmp_path: Path, name: str) -> None:
    values, said = SCHEMA[name]
    assert said in refusal(tmp_path, values, PLAN)


def test_a_plan_may_stand_in_the_values_themselves(tmp_path: Path) -> None:
    inline = render(tmp_path, {"plan": json.loads(PLAN)})
    assert inline.serve_config == render(tmp_path, {}, plan=PLAN).serve_config
