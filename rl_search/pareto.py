"""Which layouts are not beaten in both throughput and interactivity? One sort, one running maximum.

A point is on the frontier when no other has at least its tokens/s/user and more tokens/s/device
(or the same and more of the other). O(n log n).
Invariants: along the frontier tokens/s/user rises and tokens/s/device falls, both strictly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def frontier(per_user: Floats, per_device: Floats) -> Indices:
    """Indices of the frontier by rising tokens/s/user. Shapes (n,) in, (k,) out."""
    order = np.lexsort((-per_device, -per_user))  # fastest user first, then most throughput
    throughput = per_device[order]
    before = np.concatenate(([-np.inf], np.maximum.accumulate(throughput)[:-1]))
    chosen: Indices = order[throughput > before][::-1].astype(np.int64)
    return chosen
