"""Whose process is this? The mark that an engine replica hands to all it starts.

The value names the application and the replica. Processes that rename themselves (vLLM's do) wipe
the environment that the system shows, unless they are told not to.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

REPLICA_VARIABLE = "SHARDWISE_REPLICA"
_KEEP_ENVIRONMENT = "SPT_NOENV"  # of the setproctitle package


def application_id(link_secret: str) -> str:
    """What the processes of one deployment call it; does not give the secret away."""
    return hashlib.sha256(link_secret.encode()).hexdigest()[:16]


def mark(application: str, replica_id: str) -> dict[str, str]:
    """The variables of a replica's processes."""
    return {REPLICA_VARIABLE: f"{application}/{replica_id}", _KEEP_ENVIRONMENT: "1"}


def mark_descendants(application: str, replica_id: str) -> None:
    """Mark what this process starts from now on. It is not marked itself: its actor is known."""
    os.environ.update(mark(application, replica_id))


def replica_of(environment: Mapping[str, str], application: str) -> str | None:
    """The replica a process belongs to, None if it is not of this application."""
    owner, _, replica_id = environment.get(REPLICA_VARIABLE, "").partition("/")
    return replica_id if owner == application and replica_id else None
