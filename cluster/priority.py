"""Which class is a request of? Classes wait in line differently, and degrade differently."""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """Class of a request."""

    VIP = "vip"
    STANDARD = "standard"
    BATCH = "batch"


# As vLLM and the simulator order classes: the lowest goes first.
RANK = {Priority.VIP: 0, Priority.STANDARD: 1, Priority.BATCH: 2}
