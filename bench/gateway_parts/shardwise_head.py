"""The head process of `shardwise up`, with `FakeReplica` in the place of the engine replica.

    python -m bench.gateway_parts.shardwise_head STATE_DIRECTORY

Gateway, controller, placement, HTTP and the taking down are what they are for users.
"""

from __future__ import annotations

import sys

from bench.gateway_parts.fake_replica import FakeReplica
from serving import app, head

if __name__ == "__main__":
    app.EngineReplica = FakeReplica  # type: ignore[misc]
    sys.exit(head.main())
