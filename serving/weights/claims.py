"""Who downloads a model that no node has? The first who asks, for as long as it goes on asking."""

from __future__ import annotations

from dataclasses import dataclass, field

HOLDS_FOR_S = 15.0  # after its last word


@dataclass
class Claims:
    """Claims by model."""

    _holders: dict[str, tuple[str, float]] = field(default_factory=dict)

    def claim(self, key: str, node: str, *, now_s: float) -> bool:
        """Whether the model is this node's to download."""
        holder, until_s = self._holders.get(key, (node, now_s))
        if holder != node and now_s < until_s:
            return False
        self._holders[key] = (node, now_s + HOLDS_FOR_S)
        return True
