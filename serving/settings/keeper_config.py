"""What can an operator set about the nodes' keepers?"""

from __future__ import annotations

from pydantic import Field

from serving.settings.config_section import Section


class KeeperSection(Section):
    """How the nodes are looked at; seconds.

    `look_s`: between two looks at memory and devices. `orphan_grace_s`: how long a replica must be
    gone before processes and placement groups that are left of it are removed.
    `placement_timeout_s`: how long Ray may take to place a replica before it is said why it cannot.
    `node_timeout_s`: how long Ray's autoscaler, where there is one, may take to bring a node.
    `leave_s`: how long a node must hold no replica before keeper and weight store leave it, so that
    an autoscaler may take it away; None: they stay.
    """

    look_s: float = Field(default=5.0, ge=0.5)
    orphan_grace_s: float = Field(default=30.0, ge=1)
    placement_timeout_s: float = Field(default=60.0, gt=0)
    node_timeout_s: float = Field(default=600.0, gt=0)
    leave_s: float | None = Field(default=None, ge=10)
