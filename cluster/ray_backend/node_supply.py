"""What is known of the nodes that an autoscaler may bring to placement groups that wait?

It alone knows which nodes it may still add, so it is not asked how many there are, but whether what
waits will be served.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeSupply:
    """`manages`: an autoscaler adds and removes nodes. `looked`: grows with each of its looks.

    `refused`: ids of placement groups that it has no node for, and none to add. `doing`: nodes on
    their way and launches that failed, in words, empty if there are none.
    """

    manages: bool = False
    looked: int = 0
    refused: frozenset[str] = frozenset()
    doing: str = ""


NO_SUPPLY = NodeSupply()


class Refusals:
    """Does the autoscaler stay with its no? What it refuses at two looks in a row is refused.

    Between two looks nodes come and go, and a node that is just leaving has room for nobody.
    """

    def __init__(self) -> None:
        self._looked = 0
        self._once: frozenset[str] = frozenset()
        self._twice: frozenset[str] = frozenset()

    def of(self, supply: NodeSupply) -> frozenset[str]:
        """Ids that this look and the one before refuse. A look that is heard twice is one."""
        if supply.looked != self._looked:
            self._twice = self._once & supply.refused
            self._looked, self._once = supply.looked, supply.refused
        return self._twice
