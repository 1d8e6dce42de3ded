"""How does a model come from other nodes? File by file, resumed, verified, from whoever has time.

    while files are missing:  choose (file, peer) ─► receive ─► digest ─► rename

Who gives wrong bytes is not asked for that file again, who breaks off not for a while; what came of
a file before is kept, and the next peer goes on from there. Invariants: a file without
`.part` is whole and verified; the copy appears when all of them are.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.errors import UnavailableError
from serving.weights.cache import ModelCache
from serving.weights.choice import Offer, agreed_version, choose, order
from serving.weights.manifest import Manifest, safe
from serving.weights.peers import BusyError, Peers
from serving.weights.receive import Part, WrongBytesError

STREAMS = 2  # files received at once
_POLL_S = 0.3
_AVOID_S = 5.0  # a peer that broke off
PATIENCE_S = 60.0  # without a byte

logger = logging.getLogger("ray.serve")


async def fetch(
    key: str, *, peers: Peers, cache: ModelCache, node: str, patience_s: float = PATIENCE_S
) -> Path | None:
    """The directory of a copy in the version that the peers have, fetched if need be.

    None if no peer has the model. The caller holds the cache's lock. Raises UnavailableError if the
    disk is full, or if it cannot be got whole for `patience_s`.
    """
    offers = await peers.offers(key)
    version = agreed_version(offers)
    if version is None:
        return None
    if (copy := await asyncio.to_thread(cache.trusted, version)) is not None:
        return copy
    manifest = await _manifest(key, version, offers=offers, peers=peers)
    if manifest is None:
        return None
    digests = cache.begin(manifest)
    cache.room_for(manifest)
    work = _Fetch(
        key, manifest, digests, peers=peers, cache=cache, node=node, patience_s=patience_s
    )
    return await work.run()


async def _manifest(
    key: str, version: str, *, offers: Mapping[str, Offer], peers: Peers
) -> Manifest | None:
    for peer, offer in offers.items():
        if offer.version != version:
            continue
        try:
            manifest = await peers.manifest(peer, key, version)
        except Exception as error:
            logger.warning("%s does not say what model %s is made of: %r", peer, key, error)
            continue
        if manifest.version == version and all(safe(file.name) for file in manifest.files):
            return manifest
    return None


@dataclass
class _Fetch:
    """One fetch of a whole model."""

    key: str
    manifest: Manifest
    digests: dict[str, str]
    peers: Peers = field(kw_only=True)
    cache: ModelCache = field(kw_only=True)
    node: str = field(kw_only=True)
    patience_s: float = field(kw_only=True)
    failed_until_s: dict[tuple[str, str], float] = field(default_factory=dict)
    heard_s: float = field(default_factory=time.monotonic)
    trouble: str = "nobody has it whole"

    async def run(self) -> Path:
        """Until every file is here."""
        names = [file.name for file in self.manifest.files if file.name not in self.digests]
        waiting = order(names, node=self.node)
        running: dict[asyncio.Task[bool], str] = {}
        try:
            while waiting or running:
                offers = await self.peers.offers(self.key) if waiting else {}
                self._start(waiting, running, offers)
                await self._settle(waiting, running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return self.cache.finish(self.manifest, self.digests)

    def _start(
        self,
        waiting: list[str],
        running: dict[asyncio.Task[bool], str],
        offers: Mapping[str, Offer],
    ) -> None:
        while len(running) < STREAMS and waiting:
            failed = self._failed()
            found = choose(waiting, offers, version=self.manifest.version, failed=failed)
            if found is None:
                if any(
                    offer.version == self.manifest.version and (peer, name) not in failed
                    for peer, offer in offers.items()
                    for name in offer.files & set(waiting)
                ):
                    self._heard()  # they are busy, not gone
                return
            name, peer = found
            waiting.remove(name)
            running[asyncio.create_task(self._receive(name, peer))] = name

    async def _settle(self, waiting: list[str], running: dict[asyncio.Task[bool], str]) -> None:
        """Wait for one of those that run, or a moment; what has failed waits again."""
        if running:
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                name = running.pop(task)
                if not task.result():
                    waiting.insert(0, name)
        else:
            await asyncio.sleep(_POLL_S)
        if time.monotonic() - self.heard_s > self.patience_s:
            raise UnavailableError(
                f"model {self.key} cannot be fetched from other nodes: for {self.patience_s:.0f} s "
                f"nothing came of {', '.join([*waiting, *running.values()])} ({self.trouble}). "
                "Fix: see whether a node that has the model is up; what has come is kept."
            )

    async def _receive(self, name: str, peer: str) -> bool:
        """Get a file, from where it was left. False: not from this peer, or not now."""
        file = self.manifest.file(name)
        assert file is not None
        part = Part(self.cache.partial(self.manifest.version) / name, size=file.size)
        resumed = part.have > 0
        try:
            self.digests[name] = await part.receive(
                self.peers, peer, key=self.key, version=self.manifest.version, heard=self._heard
            )
        except BusyError:
            await asyncio.sleep(_POLL_S)
            return False
        except UnavailableError:
            raise
        except WrongBytesError as error:
            self.trouble = str(error)
            if not resumed:  # else what was here before may be what is wrong
                self.failed_until_s[peer, name] = math.inf
            logger.warning("%s", error)
            return False
        except Exception as error:
            self.trouble = f"{peer}: {error!r}"
            self.failed_until_s[peer, name] = time.monotonic() + _AVOID_S
            logger.warning("file %s of model %s broke off: %s", name, self.key, self.trouble)
            return False
        self.cache.keep(self.manifest, self.digests)
        return True

    def _failed(self) -> frozenset[tuple[str, str]]:
        now_s = time.monotonic()
        return frozenset(pair for pair, until_s in self.failed_until_s.items() if now_s < until_s)

    def _heard(self) -> None:
        self.heard_s = time.monotonic()
