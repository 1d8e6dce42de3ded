"""The keepers beside the controller: their loop into what it has heard, and out to the gateways."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from serving.control.observe import Heard
from serving.keeper.keepers import Keepers, KeeperSpec
from serving.keeper.ray_cluster import RayCluster
from serving.messages import NodesSeen


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


def nodes_seen(heard: Heard, *, retired: Mapping[str, int]) -> NodesSeen:
    """What gateways show of it. `retired`: replicas replaced for their memory, by pool."""
    kept, reports = heard.kept, heard.replicas
    return NodesSeen(
        memory={
            name: (reports[name].pool, use.host_bytes, use.device_bytes)
            for name, use in kept.uses.items()
            if name in reports
        },
        swept_processes=kept.counts["processes"],
        swept_placement_groups=kept.counts["placement_groups"],
        retired=dict(retired),
    )
