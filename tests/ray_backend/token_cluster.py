"""A cluster of two nodes on this machine whose interfaces ask for a token, in a process of its own.

Nothing of this repository is on its path: what jobs run there has travelled with them. Its Ray has
a directory of its own that names it, as after `ray start`: jobs are told the address that stands
there, or else that of any cluster on the machine. Each node unpacks what travels into a directory
of its own: into one of both, the second would unpack it away from under the first's processes.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.ray_folder import ray_folder

TOKEN = "two-nodes-" + "7" * 32

_NODES = """
import pathlib
import sys
from ray.cluster_utils import Cluster
dashboard, agent = map(int, sys.argv[1:3])
head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": dashboard}
head["temp_dir"] = sys.argv[3]
cluster = Cluster(
    initialize_head=True, head_node_args={**head, "dashboard_agent_listen_port": agent}
)
pathlib.Path(sys.argv[3], "ray_current_cluster").write_text(cluster.address)
cluster.add_node(num_cpus=2, runtime_env_dir_name="files-of-the-second")
print("READY", flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def token_cluster() -> Iterator[str]:
    """The URL of its dashboard."""
    port = free_port()
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        ray_folder() as own,
        subprocess.Popen(
            [sys.executable, "-c", _NODES, str(port), str(free_port()), own],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as cluster,
    ):
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        try:
            assert any(line.startswith("READY") for line in cluster.stdout)
            yield f"http://127.0.0.1:{port}"
        finally:
            cluster.stdin.close()
            cluster.wait(timeout=60)
