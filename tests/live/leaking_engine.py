"""A scripted engine whose memory grows while a file of the instance names its process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from serving.instance import INSTANCE_VARIABLE
from serving.messages import EngineSpec
from tests.live.scripted_engine import ScriptedEngine

RATE = 8 * 2**20  # bytes per second
_STEP_S = 0.25


class LeakingEngine(ScriptedEngine):
    """Allocates, and never frees, once it is told to."""

    @classmethod
    async def start(cls, spec: EngineSpec) -> LeakingEngine:
        del spec
        engine = cls()
        engine._leak = asyncio.create_task(engine._grow())
        return engine

    async def _grow(self) -> None:
        leaked: list[bytes] = []
        told = leak_file(Path(os.environ[INSTANCE_VARIABLE]), os.getpid())
        while True:
            await asyncio.sleep(_STEP_S)
            if told.exists():
                leaked.append(b"x" * int(RATE * _STEP_S))


def leak_file(directory: Path, pid: int) -> Path:
    """While it exists, the replica with this process id leaks."""
    return directory / f"leak-{pid}"
