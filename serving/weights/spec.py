"""What does a replica have to know to get at its pool's weights?"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class WeightsSpec:
    """Of one pool. `key`: the model's name among stores and in caches.

    `arbiter`: the actor that says which node downloads a model that none has (`Claims`).
    `cache_dir`: where a node keeps what it fetches; None: its default.
    """

    key: str
    namespace: str
    arbiter: str
    cache_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class StartParts:
    """Of what a replica's start is made up, in seconds.

    `weights`: until they were on the node; `engine`: loading and starting it; `warmup`: prompts.
    """

    weights_s: float
    engine_s: float
    warmup_s: float


def model_key(source: str) -> str:
    """A name for a source that a folder may have: readable, and another for every source."""
    readable = _NOT_IN_NAMES.sub("-", source.rstrip("/").rsplit("/", maxsplit=1)[-1]).strip("-")
    return f"{readable}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
