"""How is a replica ended at once, frozen or not, with every process of it?

Serve's own way waits for answers that a frozen replica never gives, Ray's takes seconds over a
stopped process, and what hangs below it (a fork server, the engine core) may outlive both. So a
task on the replica's node ends the whole tree, and Ray is told after it. Ranks that are Ray workers
end with the engine core that owns them; Serve sees the dead actor at its next look, takes back the
placement group and starts another replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serving.control.scaler import ServeReplica

SERVE_NAMESPACE = "serve"  # Ray Serve's own, in which its actors have their names
TITLE = "ray::ServeReplica"  # what Ray calls the process of a replica
TREE_S = 5.0  # for the task on its node; then Ray's own kill has to do

logger = logging.getLogger("shardwise.controller")


async def end_replica(replica: ServeReplica) -> None:
    """End a replica's processes and its actor. One that is gone already is no error."""
    if replica.pid and replica.node_id:
        await end_on_node(replica.pid, node_id=replica.node_id, title=TITLE)
    await asyncio.to_thread(_kill_actor, replica.actor_name)


async def end_on_node(pid: int, *, node_id: str, title: str) -> int:
    """`end_processes` on a node; 0 if it cannot be reached in time."""
    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    task = ray.remote(end_processes).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        async with asyncio.timeout(TREE_S):
            ended: int = await task.remote(pid, title)
    except (TimeoutError, ray.exceptions.RayError) as error:
        logger.warning("nothing is ended on node %s: %r", node_id, error)
        return 0
    logger.info("%d processes of %s were ended", ended, title)
    return ended


def end_processes(pid: int, title: str) -> int:
    """SIGKILL a process called `title…` on this node, and all below it. Returns how many.

    0 if the number has gone to another process.
    """
    try:
        root = psutil.Process(pid)
        if not " ".join(root.cmdline()).startswith(title):
            return 0
        # Read before any dies: those that are left would hang elsewhere.
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(tree)


def _kill_actor(name: str) -> None:
    try:
        actor = ray.get_actor(name, namespace=SERVE_NAMESPACE)
    except ValueError:  # Ray has seen that it is dead
        return
    ray.kill(actor, no_restart=True)


def this_node() -> str:
    """Ray's id of the node this process runs on."""
    return str(ray.get_runtime_context().get_node_id())
