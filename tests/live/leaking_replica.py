"""A replica around the engine that leaks, and a head whose replicas are such."""

from __future__ import annotations

import sys
from typing import ClassVar

from serving import app, head
from serving.engine.engine import Engine
from serving.engine.replica import EngineReplica
from tests.live.leaking_engine import LeakingEngine


class LeakingReplica(EngineReplica):
    engine: ClassVar[type[Engine]] = LeakingEngine


def run_head() -> None:
    """As `python -m serving.head STATE_DIRECTORY`."""
    app.EngineReplica = LeakingReplica  # type: ignore[misc]
    sys.exit(head.main())
