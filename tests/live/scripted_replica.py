"""A replica around the scripted engine, and a head whose replicas are such; all else is real."""

from __future__ import annotations

import sys
from typing import ClassVar

from serving import app, head
from serving.engine.engine import Engine
from serving.engine.replica import EngineReplica
from tests.live.scripted_engine import ScriptedEngine


class ScriptedReplica(EngineReplica):
    engine: ClassVar[type[Engine]] = ScriptedEngine


def run_head() -> None:
    """As `python -m serving.head STATE_DIRECTORY`."""
    app.EngineReplica = ScriptedReplica  # type: ignore[misc]
    sys.exit(head.main())
