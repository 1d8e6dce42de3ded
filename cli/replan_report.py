"""How is a move told? Its lines in `status`, and what `replan` prints of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LATEST = 3


def move_lines(move: dict[str, Any] | None, *, now_s: float) -> Iterator[str]:
    """The last move, if there was one."""
    if move is None:
        return
    yield f"layout      {move['old']} → {move['new']}: {move['phase']}"
    if move["reason"]:
        yield f"  because   {move['reason']}"
    for time_s, doing in move["steps"][-_LATEST:]:
        yield f"  {now_s - time_s:5.0f} s ago  {doing}"
