"""The application of a RayService whose engines are scripted; all else is real."""

from __future__ import annotations

from typing import Any

from ray import serve

from serving.rayservice.application import reconciler
from tests.live.scripted_replica import ScriptedReplica


def application(args: dict[str, Any]) -> serve.Application:
    """In the place of `serving.rayservice.application:application`."""
    return reconciler(args, engine=ScriptedReplica)
