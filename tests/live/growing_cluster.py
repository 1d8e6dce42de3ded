"""A Ray cluster on this machine whose nodes come and go by Ray's own autoscaler (v2).

Nodes are processes here: Ray's provider for tests starts them. Not by `AutoscalingCluster` of
`ray.cluster_utils`: its base configuration is not part of Ray's wheel, and it begins and ends with
`ray stop --force`, which ends every Ray process of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.bare_cluster import USED, BareCluster, cluster_process
from tests.live.instance import free_port
from tests.ray_folder import ray_folder

_TOKEN = "growing-" + "7" * 32
_HEAD = "f" * 51 + "00000"  # the id that the provider expects of the head
_PROVIDER = "tests.live.nodes_apart.NodesApart"
_OBJECTS = 100 * 2**20  # bytes of a node's object store
_CORES = 3  # of a worker

# The autoscaler's nodes are children of its process, and outlive it unless they are ended.
_CLUSTER = """
import json, socket, subprocess, sys, time
import psutil
from ray._private.services import get_webui_url_from_internal_kv
head = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", *json.loads(sys.argv[1])])
try:
    host, port = sys.argv[2].split(":")
    while True:  # before that, Ray would try again at growing distances
        with contextlib.suppress(OSError), socket.create_connection((host, int(port))):
            break
        assert head.poll() is None
        time.sleep(0.2)
    ray.init(sys.argv[2], namespace=NAMESPACE, log_to_driver=False)
    while get_webui_url_from_internal_kv() is None:  # it comes up after the head
        time.sleep(0.5)
    used(get_webui_url_from_internal_kv())
finally:
    started = psutil.Process().children(recursive=True)
    head.terminate()
    _, left = psutil.wait_procs(started, timeout=10)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
"""


@dataclass(frozen=True)
class GrowingCluster(BareCluster):
    """`address`: of Ray. `autoscaling`: the file that the autoscaler reads at every look."""

    address: str = ""
    autoscaling: Path = Path()

    def allow(self, nodes: int) -> None:
        """The most nodes beside the head."""
        config = json.loads(self.autoscaling.read_text())
        _write(self.autoscaling, _limited(config, nodes))


@contextmanager
def growing_cluster(home: Path, *, nodes: int) -> Iterator[GrowingCluster]:
    """Runs for as long as the context lasts. `home`: Shardwise's. `nodes`: at most, of 3 cores."""
    address = f"127.0.0.1:{(port := free_port())}"
    with ray_folder() as own:
        autoscaling = Path(own, "autoscaling.json")
        _write(autoscaling, _limited(_config(address), nodes))
        start = [
            *("start", "--head", "--block", f"--port={port}", f"--temp-dir={own}"),
            *("--num-cpus=0", "--resources", json.dumps({"shardwise-gateway": 4})),
            *(f"--object-store-memory={_OBJECTS}", f"--autoscaling-config={autoscaling}"),
            *("--dashboard-host=127.0.0.1", f"--dashboard-port={free_port()}"),
        ]
        env = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _TOKEN,
            "RAY_enable_autoscaler_v2": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_CLOUD_INSTANCE_ID": _HEAD,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all listen on 127.0.0.1
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }
        arguments = (json.dumps(start), address)
        with cluster_process(home, USED + _CLUSTER, *arguments, env=env) as dashboard:
            yield GrowingCluster(dashboard, _TOKEN, address, autoscaling)


def _config(address: str) -> dict[str, object]:
    """All that `ray up` would ask for, most of it for machines that are reached by SSH."""
    lists = ("initialization_commands", "setup_commands", "head_setup_commands")
    lists += ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    lists += ("cluster_synced_files", "rsync_exclude", "rsync_filter")
    return {
        **{name: [] for name in lists},
        "cluster_name": "growing",
        "idle_timeout_minutes": 0.1,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": address,
            "head_node_id": _HEAD,
            "launch_multiple": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {}, "node_config": {}, "max_workers": 0},
            "main": {
                "resources": {"CPU": _CORES, "object_store_memory": _OBJECTS},
                "node_config": {},
                "min_workers": 0,
            },
        },
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
    }


def _limited(config: dict[str, object], nodes: int) -> dict[str, object]:
    types = config["available_node_types"]
    assert isinstance(types, dict)
    types = types | {"main": types["main"] | {"max_workers": nodes}}
    return config | {"max_workers": nodes, "available_node_types": types}


def _write(path: Path, config: dict[str, object]) -> None:
    """At once: the autoscaler may be reading."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(config))
    new.replace(path)
