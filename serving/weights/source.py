"""Where is this replica's model, on this node? Asked before the engine starts.

A directory that is here is used as it is, without waiting for anybody. What is not here comes from
another node; a hub id that no node has is downloaded by one of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.errors import UnavailableError
from serving.weights import hub
from serving.weights.cache import ModelCache
from serving.weights.fetch import fetch
from serving.weights.peers import Peers

PATIENCE_S = 15.0
_POLL_S = 1.0
_RENEW_S = 5.0

logger = logging.getLogger("ray.serve")


class Fellows(Peers, Protocol):
    """The other nodes, of which one downloads."""

    async def claim(self, key: str) -> bool:
        """Whether this node is to download the model."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model. `source`: a directory's absolute path, or a hub id; `revision`: of the latter."""

    key: str
    source: str
    revision: str | None = None

    @property
    def on_hub(self) -> bool:
        """Whether it is a hub id."""
        return not Path(self.source).is_absolute()


async def find_here(wanted: Wanted) -> Path | None:
    """Where the model lies on this node by itself, None if it does not."""
    if wanted.on_hub:
        return await asyncio.to_thread(hub.snapshot_here, wanted.source, revision=wanted.revision)
    path = Path(wanted.source)
    return path if await asyncio.to_thread(path.is_dir) else None


async def bring(
    wanted: Wanted,
    *,
    fellows: Fellows,
    cache: ModelCache,
    node: str,
    patience_s: float = PATIENCE_S,
) -> Path:
    """Get a model that is not on this node. Raises UnavailableError naming what was tried.

    Replicas that start on a node at the same time fetch once: the others wait for the first. For
    `patience_s` it does not matter that nobody has a directory: a store may be starting.
    """
    began_s = time.monotonic()
    while True:
        with cache.lock() as ours:
            if ours:
                found = await _bring(
                    wanted, fellows=fellows, cache=cache, node=node, until_s=began_s + patience_s
                )
                logger.info(
                    "model %s is in %s after %.1f s", wanted.key, found, time.monotonic() - began_s
                )
                return found
        await asyncio.sleep(_POLL_S)


async def _bring(
    wanted: Wanted, *, fellows: Fellows, cache: ModelCache, node: str, until_s: float
) -> Path:
    while True:
        found = await _from_fellows(wanted, fellows=fellows, cache=cache, node=node)
        if found is not None:
            return found
        for version in cache.versions():  # fetched before, and nobody has another
            kept = await asyncio.to_thread(cache.trusted, version)
            if kept is not None:
                return kept
        if not wanted.on_hub and time.monotonic() > until_s:
            raise UnavailableError(
                f"the model directory {wanted.source} is not on this node, and no other node of "
                "the cluster has it. Fix: put it there under this path on one node at least, and "
                "deploy from a node that has it; or plan with --model-source and a hub id."
            )
        if wanted.on_hub and await fellows.claim(wanted.key):
            async with _renewing(fellows, wanted.key):
                return await asyncio.to_thread(
                    hub.download, wanted.source, revision=wanted.revision
                )
        await asyncio.sleep(_POLL_S)


async def _from_fellows(
    wanted: Wanted, *, fellows: Fellows, cache: ModelCache, node: str
) -> Path | None:
    try:
        return await fetch(wanted.key, peers=fellows, cache=cache, node=node)
    except UnavailableError as error:
        if not wanted.on_hub:
            raise
        logger.warning("%s Falling back to the hub.", error)
        return None


@asynccontextmanager
async def _renewing(fellows: Fellows, key: str) -> AsyncIterator[None]:
    async def renew() -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            await fellows.claim(key)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
