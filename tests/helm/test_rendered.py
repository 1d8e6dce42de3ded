"""What the chart makes of a plan."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml

from tests.helm import schemas
from tests.helm.chart import CHART, NEEDED, merged, render, run
from tests.helm.plans import DEEPSEEK, LLAMA, plan, planned, pool

PLAN = plan()

# Every part that can be switched, switched away from its default.
PARTS = {
    "external redis": {
        "gcs": {
            "redis": {
                "inChart": {"enabled": False},
                "address": "redis.databases:6379",
                "existingSecret": "redis",
            }
        }
    },
    "password of the chart's redis": {"gcs": {"redis": {"existingSecret": "redis", "key": "word"}}},
    "no fault tolerance": {"gcs": {"faultTolerance": False}},
    "keys of the chart": {"access": {"anyone": False, "keys": "keys: []"}},
    "keys of a Secret": {"access": {"anyone": False, "existingSecret": "keys"}},
    "hub token": {"huggingFace": {"existingSecret": "hub", "offline": True}},
    "claim": {"modelCache": {"kind": "pvc", "pvc": {"existingClaim": "models"}}},
    "new claim": {"modelCache": {"kind": "pvc", "pvc": {"size": "500Gi", "storageClass": "fast"}}},
    "host path": {"modelCache": {"kind": "hostPath", "hostPath": {"path": "/mnt/models"}}},
    "sized cache": {"modelCache": {"sizeLimit": "500Gi"}},
    "other accounts": {"serviceAccount": {"create": False, "head": "a", "pods": "b"}},
    "priority class": {"priorityClass": {"create": True}},
    "their priority class": {"priorityClass": {"name": "high"}},
    "no budgets": {"podDisruptionBudget": {"enabled": False}},
    "no network policy": {"networkPolicy": {"enabled": False}},
    "callers": {
        "networkPolicy": {
            "callers": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "metrics": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "dashboard": [{"podSelector": {}}],
        }
    },
    "ingress": {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "llm.example.org",
            "tlsSecret": "certificate",
            "annotations": {"a": "b"},
        }
    },
    "route": {
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "infra"}],
            "hostnames": ["llm.example.org"],
        }
    },
    "pod monitor": {"monitoring": {"scrape": "PodMonitor", "labels": {"release": "prometheus"}}},
    "service monitor": {"monitoring": {"scrape": "ServiceMonitor"}},
    "in steps": {
        "upgrade": {
            "strategy": "NewClusterWithIncrementalUpgrade",
            "incremental": {"gatewayClassName": "istio"},
        }
    },
    "no upgrade": {"upgrade": {"strategy": "None", "allowBelowFloor": True}},
    "search job": {
        "searchJob": {"enabled": True, "arguments": ["search", "--seed", 3], "resultsClaim": "r"}
    },
    "test key": {"test": {"existingSecret": "key"}},
    "pinned image": {"image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"]}},
    "no spread": {"workers": {"spread": {"topologyKey": ""}, "runtimeClassName": "nvidia"}},
    "own token": {"rayAuth": {"existingSecret": "ray-token"}},
    "placement": {
        "workers": {
            "nodeSelector": {"gpu": "h100"},
            "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
            "extraResources": {"rdma/hca": 1},
            "podAnnotations": {"a": "b"},
        },
        "gateway": {"tolerations": [{"operator": "Exists"}], "podAnnotations": {"a": "b"}},
        "head": {"affinity": {"nodeAffinity": {}}, "env": [{"name": "A", "value": "b"}]},
        "commonLabels": {"team": "search"},
        "commonAnnotations": {"owner": "search"},
    },
}
# Which come with the chart's files.
FILES = CHART / "files"
if (FILES / "alerts.yaml").exists():
    PARTS["rules"] = {"monitoring": {"rules": True}}
if (FILES / "dashboards").is_dir():
    PARTS["dashboards"] = {"monitoring": {"dashboards": True}}
ALL = [
    *("external redis", "keys of the chart", "hub token", "new claim", "priority class", "callers"),
    *("ingress", "route", "pod monitor", "search job", "test key", "pinned image", "own token"),
    *("placement", *(part for part in ("rules", "dashboards") if part in PARTS)),
]


def test_the_chart_passes_helm_s_linter(tmp_path: Path) -> None:
    said = run(tmp_path, "lint", "--strict", values=NEEDED, plan=PLAN)
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("part", PARTS)
def test_every_optional_part_is_valid_alone(tmp_path: Path, part: str) -> None:
    assert schemas.problems(render(tmp_path, PARTS[part], plan=PLAN)) == []


@pytest.mark.parametrize("made", [LLAMA, DEEPSEEK], ids=["llama", "deepseek"])
def test_a_real_plan_is_valid_with_every_part_and_with_none(
    tmp_path: Path, made: tuple[str, ...]
) -> None:
    every: dict[str, object] = {}
    for part in ALL:
        every = merged(every, PARTS[part])
    none = {
        **PARTS["no fault tolerance"],
        **PARTS["other accounts"],
        **PARTS["no budgets"],
        **PARTS["no network policy"],
    }
    for values in (every, none):
        assert schemas.problems(render(tmp_path, values, plan=planned(*made))) == []


def test_the_schemas_would_notice(tmp_path: Path) -> None:
    rendered = render(tmp_path, {}, plan=PLAN)
    rendered.group("main")["template"]["spec"]["containers"][0]["imag"] = "x"
    del rendered.cluster["workerGroupSpecs"][0]["groupName"]
    found = "\n".join(schemas.problems(rendered))
    assert "'imag' was unexpected" in found
    assert "group without groupName" in found


@pytest.mark.skipif(schemas.crds() is None, reason="KubeRay's CRDs are not at hand")
def test_kuberay_s_own_schema_would_notice(tmp_path: Path) -> None:
    rendered = render(tmp_path, {}, plan=PLAN)
    rendered.cluster["headGroupSpec"]["rayStartParam"] = {}
    assert any("rayStartParam" in problem for problem in schemas.problems(rendered))


def sizes(tmp_path: Path, text: str, **workers: object) -> dict[str, tuple[int, int, int]]:
    """Of each pool's pods: devices, least, and most that the plan's cluster holds."""
    rendered = render(tmp_path, {"workers": workers}, plan=text)
    found = {}
    for group in rendered.cluster["workerGroupSpecs"]:
        if group["groupName"] != "gateway":
            (container,) = group["template"]["spec"]["containers"]
            devices = container["resources"]["limits"]["nvidia.com/gpu"]
            assert group["resources"] == {"CPU": str(devices), "GPU": str(devices)}
            found[group["groupName"]] = (devices, group["minReplicas"], group["maxReplicas"])
    return found


def bounds(least: int, most: int) -> dict[str, int]:
    return {"minimum": least, "initial": least, "maximum": most}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plan(pool(tp=4, replicas=bounds(1, 4))), {"main": (4, 1, 4)}),
        (plan(pool(tp=8, replicas=bounds(0, 2))), {"main": (8, 0, 2)}),
        # Two nodes, one stage on each.
        (plan(pool(tp=8, pp=2, replicas=bounds(1, 1))), {"main": (8, 2, 2)}),
        # Whole stages of three ranks: two on the one pod, one on the other.
        (plan(pool(tp=3, pp=3, replicas=bounds(1, 1))), {"main": (6, 2, 2)}),
        (
            plan(
                pool(tp=4, replicas=bounds(1, 3)),
                pool("light", tp=1, replicas=bounds(0, 4)),
            ),
            {"main": (4, 1, 4), "light": (1, 0, 16)},
        ),
    ],
)
def test_a_pod_has_the_whole_tensor_groups_of_a_replica(
    tmp_path: Path, text: str, expected: dict[str, tuple[int, int, int]]
) -> None:
    assert sizes(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("made", "devices", "cores", "memory"), [(LLAMA, 4, 32, "256Gi"), (DEEPSEEK, 8, 64, "512Gi")]
)
def test_the_pods_of_two_real_plans_are_as_documented(
    tmp_path: Path, made: tuple[str, ...], devices: int, cores: int, memory: str
) -> None:
    group = render(tmp_path, {}, plan=planned(*made)).group("main")
    (container,) = group["template"]["spec"]["containers"]
    asked = {"nvidia.com/gpu": devices, "cpu": cores, "memory": memory}
    assert container["resources"]["requests"] == asked
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 4)


def test_whole_nodes_take_other_layouts_without_new_pods(tmp_path: Path) -> None:
    nodes = {"devicesPerPod": {"main": 8}}
    four = sizes(tmp_path, plan(pool(tp=4, replicas=bounds(1, 4))), **nodes)
    two = sizes(tmp_path, plan(pool(tp=2, replicas=bounds(1, 8))), **nodes)
    assert four == two == {"main": (8, 1, 2)}


def test_nothing_in_the_chart_says_how_many_pods_a_pool_has(tmp_path: Path) -> None:
    rendered = render(tmp_path, {}, plan=PLAN)
    assert rendered.cluster["enableInTreeAutoscaling"] is True
    assert [g for g in rendered.cluster["workerGroupSpecs"] if "replicas" in g] == []


def test_the_head_takes_no_traffic_and_no_engine(tmp_path: Path) -> None:
    rendered = render(tmp_path, {}, plan=PLAN)
    assert rendered.one("RayService")["spec"]["excludeHeadPodFromServeSvc"] is True
    assert rendered.cluster["headGroupSpec"]["resources"]["CPU"] == "0"


def test_callers_reach_gateways_by_a_port_that_engines_do_not_have(tmp_path: Path) -> None:
    rendered = render(tmp_path, {"gateway": {"port": 9000}}, plan=PLAN)
    (port,) = rendered.one("RayService")["spec"]["serveService"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (9000, "serve")
    ports = {}
    for name in ("gateway", "main"):
        (container,) = rendered.group(name)["template"]["spec"]["containers"]
        ports[name] = [port["name"] for port in container["ports"]]
    assert ("serve" in ports["gateway"], "serve" in ports["main"]) == (True, False)
    assert rendered.group("gateway")["resources"]["shardwise-gateway"] == "1"


def test_in_an_upgrade_by_steps_only_gateways_are_ready(tmp_path: Path) -> None:
    """KubeRay's Services then take every ready pod, by a port's number."""
    rendered = render(tmp_path, PARTS["in steps"], plan=PLAN)
    (engine,) = rendered.group("main")["template"]["spec"]["containers"]
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert "serveService" not in rendered.one("RayService")["spec"]
    assert [b["metadata"]["name"] for b in rendered.of("PodDisruptionBudget")] == ["chat-gateway"]


def test_pods_may_nothing_that_they_need_not(tmp_path: Path) -> None:
    rendered = render(tmp_path, PARTS["search job"], plan=PLAN)
    for where, _, spec in rendered.pod_specs():
        assert spec["securityContext"]["runAsNonRoot"] is True, where
        token = spec["automountServiceAccountToken"] if "head" not in where else False
        assert token is False, where
        for container in spec["containers"]:
            rights = container["securityContext"]
            assert rights["capabilities"] == {"drop": ["ALL"]}, where
            assert rights["allowPrivilegeEscalation"] is False, where
            assert rights["readOnlyRootFilesystem"] is True, where


def test_what_is_begun_is_finished_before_a_pod_ends(tmp_path: Path) -> None:
    values = {"config": {"limits": {"answer_s": 300.0}}, "upgrade": {"deletionDelaySeconds": 400}}
    rendered = render(tmp_path, values, plan=PLAN)
    for name in ("gateway", "main"):
        spec = rendered.group(name)["template"]["spec"]
        variables = {v["name"]: v.get("value") for v in spec["containers"][0]["env"]}
        assert variables["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == "300"
        assert spec["terminationGracePeriodSeconds"] == 360


def test_pods_know_the_head_by_a_name_that_outlives_its_pod(tmp_path: Path) -> None:
    rendered = render(tmp_path, {}, plan=PLAN)
    for group in (rendered.cluster["headGroupSpec"], *rendered.cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        env = container["env"]
        names = [variable["name"] for variable in env]
        head = env[names.index("SHARDWISE_DASHBOARD")]["value"]
        assert head == "http://$(SHARDWISE_RAY_CLUSTER)-head-svc:8265"
        # Kubernetes puts in only what was said before.
        assert names.index("SHARDWISE_RAY_CLUSTER") < names.index("SHARDWISE_DASHBOARD")


def test_another_configuration_is_another_cluster_and_another_plan_is_not(tmp_path: Path) -> None:
    def head(values: dict[str, object], text: str) -> object:
        return render(tmp_path, values, plan=text).cluster["headGroupSpec"]

    assert head({}, PLAN) == head({}, plan(pool(tp=2)))
    assert head({}, PLAN) != head({"config": {"limits": {"max_queued": 8}}}, PLAN)


def test_nodes_without_replicas_are_left_for_the_autoscaler(tmp_path: Path) -> None:
    def keeper(values: dict[str, object]) -> object:
        (application,) = render(tmp_path, values, plan=PLAN).serve_config["applications"]
        return application["args"]["config"]["steering"]["keeper"]

    assert keeper({}) == {"leave_s": 60}
    own = {"config": {"steering": {"keeper": {"leave_s": 600, "look_s": 2}}}}
    assert keeper(own) == {"leave_s": 600, "look_s": 2}


def test_keys_are_mounted_as_a_directory_so_that_new_ones_arrive(tmp_path: Path) -> None:
    rendered = render(tmp_path, PARTS["keys of the chart"], plan=PLAN)
    spec = rendered.group("gateway")["template"]["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "keys"]
    assert "subPath" not in mount
    secret = next(s for s in rendered.of("Secret") if s["metadata"]["name"] == "chat-keys")
    assert secret["stringData"] == {"keys.yaml": "keys: []"}
    keys_file = rendered.serve_config["applications"][0]["args"]["config"]["access"]["keys_file"]
    assert Path(keys_file).parent == Path(mount["mountPath"])


def test_arguments_of_the_search_job_are_one_word_each_for_the_shell(tmp_path: Path) -> None:
    words = ["search", "--model", "it's; rm -rf /"]
    rendered = render(tmp_path, {"searchJob": {"enabled": True, "arguments": words}}, plan=PLAN)
    assert shlex.split(rendered.one("RayJob")["spec"]["entrypoint"]) == ["shardwise", *words]


def test_the_trial_without_gpus_is_valid(tmp_path: Path) -> None:
    trial = yaml.safe_load((CHART / "values-cpu-trial.yaml").read_text())
    cpus = plan(
        pool(tp=1), spec="1x2xcpu", device="cpu", device_kind="cpu", nodes=1, devices_per_node=2
    )
    values = merged(trial, {"gcs": {"redis": {"inChart": {"enabled": False}}}})
    rendered = render(tmp_path, values, plan=cpus)
    assert schemas.problems(rendered) == []
    (engine,) = rendered.group("main")["template"]["spec"]["containers"]
    assert engine["resources"]["limits"] == {"memory": "3Gi"}
    assert rendered.group("main")["resources"] == {"CPU": "1", "GPU": "0"}
