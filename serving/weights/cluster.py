"""Which stores are there, and how are they asked? One Ray actor a node, found by its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serving.weights.choice import Offer
from serving.weights.door import Read
from serving.weights.manifest import Manifest
from serving.weights.peers import Chunk
from serving.weights.reader import DoorReader
from serving.weights.spec import WeightsSpec
from serving.weights.store import WeightStore

_PREFIX = "shardwise-weights-"
_OFFER_S = 10.0  # for a store to say what it has

logger = logging.getLogger("ray.serve")


def store_name(node_id: str) -> str:
    """Of a node's store."""
    return _PREFIX + node_id


def this_node() -> str:
    """The id of the node this process runs on."""
    node: str = ray.get_runtime_context().get_node_id()
    return node


def start_store(places: Mapping[str, str | None], *, namespace: str, cache_dir: str | None) -> Any:
    """This node's store, started if it is not there. Returns without waiting for it.

    It outlives who starts it: a node whose replicas are gone still has the model for others.
    """
    node = this_node()
    actor = ray.remote(WeightStore).options(
        name=store_name(node),
        namespace=namespace,
        get_if_exists=True,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=64,
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    )
    host = ray.util.get_node_ip_address()
    return actor.remote(dict(places), cache_dir=cache_dir, host=host)


def stop_stores(namespace: str) -> None:
    """End the stores of an instance, on all nodes."""
    for name in _names(namespace):
        ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)


def _names(namespace: str) -> list[str]:
    return [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == namespace and actor["name"].startswith(_PREFIX)
    ]


class RayPeers:
    """The stores of the other nodes, as `fetch.Peers`."""

    def __init__(self, spec: WeightsSpec) -> None:
        self._spec = spec
        self._own = store_name(this_node())
        self._stores: dict[str, Any] = {}
        self._readers: dict[str, DoorReader] = {}

    async def offers(self, key: str) -> dict[str, Offer]:
        """What each has of the model; those that do not answer are left out."""
        await asyncio.to_thread(self._look)
        asked = dict(self._stores)
        answers = await asyncio.gather(
            *(self._offer(store, key) for store in asked.values()), return_exceptions=True
        )
        return {
            name: offer
            for name, offer in zip(asked, answers, strict=True)
            if isinstance(offer, Offer)
        }

    async def manifest(self, peer: str, key: str, version: str) -> Manifest:
        """Its files."""
        manifest: Manifest = await self._stores[peer].manifest.remote(key, version)
        return manifest

    async def digest(self, peer: str, key: str, version: str, name: str) -> str:
        """Of a file."""
        digest: str = await self._stores[peer].digest.remote(key, version, name)
        return digest

    async def read(
        self, peer: str, key: str, version: str, name: str, *, offset: int, length: int
    ) -> Chunk:
        """A part of a file."""
        reader = self._readers.get(peer)
        if reader is None:
            async with asyncio.timeout(_OFFER_S):
                reader = DoorReader(await self._stores[peer].address.remote())
            self._readers[peer] = reader
        try:
            return await reader.read(Read(key, version, name, offset, length, self._own))
        except OSError:  # it may have been started again, elsewhere
            reader.close()
            self._readers.pop(peer, None)
            raise

    async def done(self, peer: str, key: str, name: str) -> None:
        """Nothing more is wanted of this file."""
        self._stores[peer].done.remote(key, name, self._own)

    def close(self) -> None:
        """Give up connections that are not in use."""
        while self._readers:
            self._readers.popitem()[1].close()

    async def claim(self, key: str) -> bool:
        """Whether this node is to download the model; yes if there is nobody who could say no."""
        try:
            arbiter = await asyncio.to_thread(
                ray.get_actor, self._spec.arbiter, namespace=self._spec.namespace
            )
            async with asyncio.timeout(_OFFER_S):
                return bool(await arbiter.claim.remote(key, self._own))
        except Exception as error:
            logger.warning("%s does not say who downloads: %r", self._spec.arbiter, error)
            return True

    async def _offer(self, store: Any, key: str) -> Offer | None:
        async with asyncio.timeout(_OFFER_S):
            offer: Offer | None = await store.offer.remote(key)
            return offer

    def _look(self) -> None:
        """Find stores that are new, forget those that are gone."""
        names = {name for name in _names(self._spec.namespace) if name != self._own}
        self._stores = {name: store for name, store in self._stores.items() if name in names}
        for name in names - set(self._stores):
            try:
                self._stores[name] = ray.get_actor(name, namespace=self._spec.namespace)
            except ValueError:
                continue  # gone since it was listed
