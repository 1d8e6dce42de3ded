"""What does a replica do about its weights before its engine starts, on each of its nodes?

A replica whose ranks are on several nodes needs its model on all of them, under one path; where
they have it in different places, each makes a link of the same name in its cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.errors import UnavailableError
from serving.messages import EngineSpec
from serving.weights.cache import ModelCache, default_cache
from serving.weights.cluster import RayPeers, start_store, this_node
from serving.weights.read_ahead import read_ahead
from serving.weights.source import Wanted, bring, find_here
from serving.weights.spec import WeightsSpec

_FORMATS = ("auto", "hf", "safetensors")
_OFFER_EVERY_S = 10.0  # a store that was started again has forgotten what it was told

logger = logging.getLogger("ray.serve")
_beside: set[asyncio.Task[Any]] = set()


async def local_source(spec: EngineSpec) -> str:
    """What the engine is to load: a directory of this node. Raises UnavailableError.

    From then on, and for as long as this process lives, the node's store gives it to others.
    """
    weights = spec.weights
    if weights is None or spec.engine_args.get("load_format", "auto") not in _FORMATS:
        return spec.model_source  # vLLM has ways of its own to get at it
    wanted = Wanted(
        key=weights.key, source=spec.model_source, revision=spec.engine_args.get("revision")
    )
    others = await asyncio.to_thread(_other_nodes)
    found, *elsewhere = await asyncio.gather(
        _on_this_node(wanted, weights),
        *(_task(_on_a_ranks_node, node).remote(wanted, weights) for node in others),
    )
    _go_on(_keep_offering(weights, found))
    _go_on(_read_ahead(found))
    if {found} >= set(elsewhere):
        return str(found)
    return await _linked(weights, dict(zip(others, elsewhere, strict=True)), found)


async def _on_this_node(wanted: Wanted, weights: WeightsSpec) -> Path:
    found = await find_here(wanted)
    if found is not None:
        return found
    _go_on(_offer(weights, None))  # others take what has come already
    peers, cache = RayPeers(weights), ModelCache(_cache_root(weights), weights.key)
    with contextlib.closing(peers):
        return await bring(wanted, fellows=peers, cache=cache, node=this_node())


def _on_a_ranks_node(wanted: Wanted, weights: WeightsSpec) -> Path:
    """A task on a node of another rank."""

    async def whole() -> Path:
        found = await _on_this_node(wanted, weights)
        await _offer(weights, found)
        await _read_ahead(found)
        return found

    return asyncio.run(whole())


async def _keep_offering(weights: WeightsSpec, found: Path) -> None:
    store = await _offer(weights, found)
    while store is not None:
        await asyncio.sleep(_OFFER_EVERY_S)
        with contextlib.suppress(ray.exceptions.RayError):  # away for now, or ended with us
            await store.hold.remote(weights.key, _outside_cache(weights, found))


async def _offer(weights: WeightsSpec, found: Path | None) -> Any:
    """The store of this node, which gives the model to others; None if there is to be none."""
    place = _outside_cache(weights, found)
    try:
        store = await asyncio.to_thread(
            start_store,
            {weights.key: place},
            namespace=weights.namespace,
            cache_dir=weights.cache_dir,
        )
        await store.hold.remote(weights.key, place)
    except Exception as error:  # the replica can do without
        logger.warning("this node does not give model %s to others: %r", weights.key, error)
        return None
    return store


def _outside_cache(weights: WeightsSpec, found: Path | None) -> str | None:
    """A directory the store has to be told of; what is in the cache it finds by itself."""
    return None if found is None or _cache_root(weights) in found.parents else str(found)


async def _read_ahead(found: Path) -> None:
    try:
        if await asyncio.to_thread(read_ahead, found) is None:
            logger.info("%s is not read ahead: it would not stay in memory", found)
    except OSError as error:
        logger.warning("%s is not read ahead: %s", found, error)


def _go_on(work: Coroutine[Any, Any, object]) -> None:
    """Nobody waits for this: it is for replicas that come later, or while the engine imports."""
    task = asyncio.create_task(work)
    _beside.add(task)
    task.add_done_callback(_beside.discard)


async def _linked(weights: WeightsSpec, elsewhere: dict[str, Path], found: Path) -> str:
    """One path for what lies in different places on the nodes of a replica."""
    links = await asyncio.gather(
        asyncio.to_thread(_link, weights, found),
        *(_task(_link, node).remote(weights, there) for node, there in elsewhere.items()),
    )
    if len(set(links)) > 1:
        raise UnavailableError(
            f"the caches of this replica's nodes have different paths: {', '.join(set(links))}. "
            "Fix: set weights.cache_dir to one path that all nodes can have."
        )
    return str(links[0])


def _link(weights: WeightsSpec, found: Path) -> str:
    """The same name on every node for what lies elsewhere on each."""
    link = _cache_root(weights) / weights.key / "linked"
    made = link.with_name(f"{link.name}.{os.getpid()}")
    link.parent.mkdir(parents=True, exist_ok=True)
    made.symlink_to(found, target_is_directory=True)
    made.replace(link)
    return str(link)


def _task(function: Callable[..., object], node: str) -> Any:
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy)


def _cache_root(weights: WeightsSpec) -> Path:
    return Path(weights.cache_dir) if weights.cache_dir else default_cache()


def _other_nodes() -> list[str]:
    """Nodes of this replica's ranks beside the one it runs on."""
    group = ray.util.get_current_placement_group()
    if group is None or group.bundle_count == 1:
        return []
    nodes: dict[int, str] = ray.util.placement_group_table(group)["bundles_to_node_id"]
    return sorted(set(nodes.values()) - {this_node()})
