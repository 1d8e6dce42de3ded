"""What is said between a node that fetches and the stores of the others?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from serving.weights.choice import Offer
from serving.weights.manifest import Manifest

Chunk = npt.NDArray[np.uint8]


class NotHeldError(Exception):
    """The node does not have this file of this version."""


class BusyError(Exception):
    """So many read here already that another would only slow them down."""


class Peers(Protocol):
    """The stores of the other nodes. What they raise counts as a failure of that peer."""

    async def offers(self, key: str) -> Mapping[str, Offer]:
        """What each has of the model; those that do not answer are left out."""

    async def manifest(self, peer: str, key: str, version: str) -> Manifest:
        """Its files."""

    async def digest(self, peer: str, key: str, version: str, name: str) -> str:
        """Of a file."""

    async def read(
        self, peer: str, key: str, version: str, name: str, *, offset: int, length: int
    ) -> Chunk:
        """A part of a file. Raises BusyError."""

    async def done(self, peer: str, key: str, name: str) -> None:
        """Nothing more is wanted of this file."""

    def close(self) -> None:
        """Give up connections that are not in use."""
