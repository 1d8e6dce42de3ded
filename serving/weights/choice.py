"""Which file is fetched next, and from whom?

From the peer that is least busy, so that whoever has just got a file takes readers off the others:
the copies spread as a tree. Each node begins at another file, so that soon every one has something
that others lack (as BitTorrent's pieces do).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

READERS = 4  # files a store gives out at once


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a node has of a model. `origin`: where it was placed, not copied to."""

    version: str
    files: frozenset[str]
    origin: bool
    readers: int


def agreed_version(offers: Mapping[str, Offer]) -> str | None:
    """The version to fetch: that of the origins, else the one most nodes have."""
    if not offers:
        return None
    votes: dict[str, tuple[int, int]] = {}
    for offer in offers.values():
        origins, copies = votes.get(offer.version, (0, 0))
        votes[offer.version] = (origins + offer.origin, copies + 1)
    return max(votes, key=lambda version: (*votes[version], version))


def order(files: Sequence[str], *, node: str) -> list[str]:
    """In turn, from a place that is the node's own."""
    if not files:
        return []
    start = int.from_bytes(hashlib.sha256(node.encode()).digest()[:4], "big") % len(files)
    return [*files[start:], *files[:start]]


def choose(
    wanted: Iterable[str],
    offers: Mapping[str, Offer],
    *,
    version: str,
    failed: AbstractSet[tuple[str, str]],
) -> tuple[str, str] | None:
    """The next file and its peer; None while nobody has time.

    `wanted`: in the order they are to be fetched. `failed`: pairs of peer and file that were tried.
    """
    best: tuple[int, str, str] | None = None
    for name in wanted:
        for peer, offer in sorted(offers.items()):
            if offer.version != version or name not in offer.files or (peer, name) in failed:
                continue
            if offer.readers < READERS and (best is None or offer.readers < best[0]):
                best = (offer.readers, name, peer)
    return None if best is None else best[1:]


def chunks(size: int, *, have: int, chunk: int) -> list[tuple[int, int]]:
    """Offset and length of what is missing of a file of `size` bytes, `have` of them here."""
    return [(start, min(chunk, size - start)) for start in range(min(have, size), size, chunk)]
