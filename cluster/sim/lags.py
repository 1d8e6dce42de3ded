"""What does a first token wait for that neither a step nor a queue explains? Per engine, measured.

Scheduling ahead of the device, intervals between looks at the queue, and output processing show in
measured TTFT as whole decode steps. The service model has coefficients of its own for it, which
also stand for queueing that the simulator plays out; so these are fitted by replay, to
`calibrations/simulator.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from cluster.costmodel.calibration_file import FOLDER, read_calibration


@dataclass(frozen=True, kw_only=True)
class Lags:
    """Decode steps a first token waits: `steps` beside others, `rank_steps` more with ranks.

    `places`: times between two completions that a request of a benchmark with equal lengths waits
    for its place (the simulator of measured runs adds it; live traffic has none).
    """

    steps: float
    rank_steps: float
    places: float


@cache
def lags_of(engine: str) -> Lags:
    """Of an engine: vllm, sglang, trtllm, or cpu (vLLM's CPU build)."""
    values = read_calibration(FOLDER / "simulator.yaml").parameters
    return Lags(
        steps=values[f"lag.{engine}.steps"],
        rank_steps=values[f"lag.{engine}.rank_steps"],
        places=values[f"lag.{engine}.places"],
    )
