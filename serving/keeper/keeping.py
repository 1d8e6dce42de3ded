"""The keepers beside the controller: their loop into what it has heard."""

from __future__ import annotations

import asyncio
import time

from serving.control.observe import Heard
from serving.keeper.keepers import Keepers, KeeperSpec
from serving.keeper.ray_cluster import RayCluster


def keep(
    spec: KeeperSpec, heard: Heard, *, dashboard_url: str, token: str | None
) -> asyncio.Task[None]:
    """Look at the nodes for ever; `heard.kept` has what they tell."""
    cluster = RayCluster(
        app=spec.app,
        application=spec.application,
        namespace=spec.namespace,
        orphan_grace_s=spec.orphan_grace_s,
        dashboard_url=dashboard_url,
        token=token,
    )
    keepers = Keepers(spec, cluster, living=lambda: heard.living(time.time()))
    heard.kept = keepers.kept
    return asyncio.get_event_loop().create_task(keepers.run())
