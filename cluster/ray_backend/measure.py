"""How do the microbenchmarks run on every node of a Ray cluster, and between nodes?

One task a node, pinned to it and holding all its GPUs (a benchmark beside a serving replica
measures neither), then one actor a rank in a placement group whose bundles are pinned to nodes, so
that `torch.distributed` (NCCL or gloo) spans what it should. Ray must be connected before.

Invariants: what is reserved is freed, whatever fails; a node without torch is named before
anything is timed; nothing waits longer than the budget and a start-up allowance.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from cluster.calibration.collective_bench import (
    DEFAULT_SIZES,
    MOST_CPU_RANKS,
    Schedule,
    run_rank,
    teams,
)
from cluster.calibration.microbench import Sizes, measure_node
from cluster.calibration.peer_bench import path_inside
from cluster.calibration.points import CollectivePoint, LinkPath, Measurements
from cluster.errors import UnavailableError
from cluster.ray_backend.rendezvous import meeting_at

_START_S = 180.0  # a worker process starts, torch is imported, CUDA comes up
_NODE_LABEL = "ray.io/node-id"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A living node: its id, address and what Ray may schedule on it."""

    node_id: str
    address: str
    gpus: int
    cpus: int


def living_nodes() -> tuple[RayNode, ...]:
    """Nodes that can run something, in order of address. UnavailableError without Ray or nodes."""
    if not ray.is_initialized():
        raise UnavailableError(
            "not connected to a Ray cluster, so there are no nodes to measure. Fix: connect to one "
            "(--address), or calibrate this machine alone."
        )
    found = [
        RayNode(
            node_id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            gpus=int(node["Resources"].get("GPU", 0)),
            cpus=int(node["Resources"].get("CPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    usable = sorted((n for n in found if n.gpus or n.cpus), key=lambda n: (n.address, n.node_id))
    if not usable:
        raise UnavailableError("no node of the Ray cluster offers a CPU or a GPU to measure.")
    gpu_nodes = tuple(node for node in usable if node.gpus)
    return gpu_nodes or tuple(usable)  # with GPUs in the cluster, a CPU head is no device


def measure_cluster(
    *,
    budget_s: float = 120.0,
    sizes: Sizes | None = None,
    collective_sizes: Sequence[int] = DEFAULT_SIZES,
    domain_spans_nodes: bool = False,
) -> Measurements:
    """All points of all nodes: two thirds of the budget on the nodes, one third between ranks.

    `domain_spans_nodes`: all nodes share one scale-up domain (NVL72). Raises UnavailableError for
    a node without torch, one that is occupied, and benchmarks that fail; InputError for nodes of
    unlike devices.
    """
    nodes = living_nodes()
    _check_torch(nodes)
    each = measure_nodes(nodes, budget_s=budget_s * 2 / 3, sizes=sizes)
    merged = Measurements.merged(each)
    path = path_inside(merged)
    collectives = measure_collectives(
        nodes,
        budget_s=budget_s / 3,
        sizes=collective_sizes,
        inside=path,
        domain_spans_nodes=domain_spans_nodes,
    )
    return replace(merged, collectives=collectives)


def measure_nodes(
    nodes: Sequence[RayNode], *, budget_s: float, sizes: Sizes | None = None
) -> tuple[Measurements, ...]:
    """`measure_node` on every node at once, each with all its GPUs (CPU nodes: one core)."""
    task = ray.remote(_measure)
    pending = [
        task.options(
            num_cpus=0 if node.gpus else 1,
            num_gpus=node.gpus,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote(budget_s, sizes)
        for node in nodes
    ]
    found: Sequence[Measurements] = _gather(pending, nodes, seconds=budget_s, what="benchmark")
    return tuple(found)


def measure_collectives(
    nodes: Sequence[RayNode],
    *,
    budget_s: float,
    inside: LinkPath,
    sizes: Sequence[int] = DEFAULT_SIZES,
    domain_spans_nodes: bool = False,
) -> tuple[CollectivePoint, ...]:
    """Collectives inside a node and across nodes; none where there is only one device."""
    device = "cuda" if nodes[0].gpus else "cpu"
    node_of = [
        number
        for number, node in enumerate(nodes)
        for _ in range(node.gpus or min(node.cpus, MOST_CPU_RANKS))
    ]
    schedule = Schedule(
        world=len(node_of),
        device=device,
        teams=teams([0] * len(node_of) if domain_spans_nodes else node_of, inside=inside),
        sizes=tuple(sizes),
        budget_s=budget_s,
    )
    if not schedule.teams:
        return ()
    bundle = {"GPU": 1.0} if device == "cuda" else {"CPU": 1.0}
    group = placement_group(
        [dict(bundle) for _ in node_of],
        strategy="PACK",
        bundle_label_selector=[{_NODE_LABEL: nodes[number].node_id} for number in node_of],
    )
    actors: list[Any] = []
    try:
        if not group.wait(timeout_seconds=_START_S):
            raise UnavailableError(
                f"the cluster did not free {len(node_of)} {next(iter(bundle))}(s) within "
                f"{_START_S:g} s for the collectives. Fix: stop what occupies them "
                "(`shardwise down`), then calibrate."
            )
        actors = [_rank(group, index, device=device) for index in range(len(node_of))]
        where = [nodes[number] for number in node_of]
        meeting = _gather(
            [actors[0].meeting.remote(len(actors))], where[:1], seconds=0.0, what="rank"
        )[0]
        running = [actor.run.remote(rank, schedule, meeting) for rank, actor in enumerate(actors)]
        answers = _gather(running, where, seconds=budget_s, what="collective benchmark")
        return tuple(answers[0])
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


class RankActor:
    """One rank of a process group."""

    def meeting(self, world: int) -> str:
        """Where `world` ranks meet: at this one, on its node's address."""
        meeting, self._store = meeting_at(ray.util.get_node_ip_address(), world=world)
        return meeting

    def run(self, rank: int, schedule: Schedule, meeting: str) -> tuple[CollectivePoint, ...]:
        """See `run_rank`."""
        return run_rank(rank, schedule, meeting=meeting)


def _rank(group: Any, index: int, *, device: str) -> Any:
    actor = ray.remote(RankActor).options(
        num_cpus=0 if device == "cuda" else 1,
        num_gpus=1 if device == "cuda" else 0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        ),
    )
    return actor.remote()


def _measure(budget_s: float, sizes: Sizes | None) -> Measurements:
    return measure_node(budget_s=budget_s, sizes=sizes)


def _has_torch() -> tuple[str, bool]:
    return platform.node(), importlib.util.find_spec("torch") is not None


def _check_torch(nodes: Sequence[RayNode]) -> None:
    task = ray.remote(_has_torch)
    asked = [
        task.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
        ).remote()
        for node in nodes
    ]
    answers = _gather(asked, nodes, seconds=0.0, what="look for PyTorch")
    without = [
        f"{host} ({node.address})"
        for node, (host, there) in zip(nodes, answers, strict=True)
        if not there
    ]
    if without:
        raise UnavailableError(
            f"PyTorch is not installed on {len(without)} of {len(nodes)} node(s): "
            f"{', '.join(without)}. The microbenchmarks run on it. Fix: install the cpu or the gpu "
            "extra in the Python environment of Ray's workers there."
        )


def _gather(
    pending: Sequence[Any], nodes: Sequence[RayNode], *, seconds: float, what: str
) -> list[Any]:
    """The answers in order; UnavailableError names the node that fails or does not answer."""
    limit = seconds + _START_S
    deadline = time.monotonic() + limit
    node_of = dict(zip(pending, nodes, strict=True))
    answers: dict[Any, Any] = {}
    waiting = list(pending)
    while waiting:
        # One by one: a rank that fails leaves the others waiting for it.
        left = max(0.0, deadline - time.monotonic())
        done, waiting = ray.wait(waiting, num_returns=1, timeout=left)
        if not done:
            for ref in waiting:
                ray.cancel(ref, force=False)
            silent = sorted({node_of[ref].address for ref in waiting})
            raise UnavailableError(
                f"the {what} did not end within {limit:g} s on {', '.join(silent)}. Fix: see that "
                "no service holds the devices (`shardwise down`) and that the nodes are up."
            )
        for ref in done:
            try:
                answers[ref] = ray.get(ref)
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                raise UnavailableError(
                    f"the {what} failed on {node_of[ref].address}: {cause}"
                ) from error
    return [answers[ref] for ref in pending]


_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray in the processes of a job


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Connected to the running cluster at `address`; this code travels to its nodes.

    Within a Ray job the job's own runtime environment counts: what it was submitted with.
    Raises UnavailableError where nothing answers there.
    """
    _check_reachable(address)
    travels = {"working_dir": str(_REPOSITORY), "excludes": [".venv", ".git"]}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            runtime_env=None if _JOB in os.environ else travels,
        )
    except (ConnectionError, ValueError) as error:
        raise _unreachable(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise UnavailableError at once where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # `auto`, or a name that Ray knows
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from error


_CONNECT_S = 10.0


def _unreachable(address: str, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"cannot connect to a Ray cluster at {address} ({error}). Is it up and reachable from "
        "here? If it asks for a token, set RAY_AUTH_MODE=token (and RAY_AUTH_TOKEN_PATH)."
    )
