"""Ray's provider of nodes that are processes, as nodes of their own are: loaded by the autoscaler.

Nodes of one machine share the directory into which a driver's files are unpacked, and each new node
unpacks them anew, away from under processes that import them on the others.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from ray._private import ray_constants
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider


class NodesApart(FakeMultiNodeProvider):  # type: ignore[misc]  # not typed
    """Each node has such a directory of its own."""

    def _create_node_with_resources_and_labels(self, *arguments: Any) -> None:
        own = f"{ray_constants.DEFAULT_RUNTIME_ENV_DIR_NAME}-{len(self._nodes)}"
        with patch.object(ray_constants, "DEFAULT_RUNTIME_ENV_DIR_NAME", own):
            super()._create_node_with_resources_and_labels(*arguments)
