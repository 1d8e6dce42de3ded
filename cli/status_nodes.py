"""What does `shardwise status` say of the nodes? Trouble, placements nobody can meet, sweeps."""

from __future__ import annotations

from typing import Any

from rich.console import Console

_LATEST = 5


def show_nodes(nodes: dict[str, Any], *, console: Console) -> None:
    """What there is to say; nothing where all is well."""
    for name, words in nodes["trouble"].items():
        console.print(f"node        {name}: {words}", markup=False)
    for words in nodes["unmet"].values():
        console.print(f"unplaced    {words}", markup=False)
    for swept in nodes["swept"][-_LATEST:]:
        console.print(
            f"swept       {swept['name']} (pid {swept['pid']}), left of replica "
            f"{swept['replica_id']}, {swept['host_bytes'] / 2**30:.2f} GiB, "
            f"{swept['age_s']:.0f} s old",
            markup=False,
        )
    groups = nodes["counts"].get("placement_groups", 0)
    if groups:
        console.print(f"swept       {groups} placement group(s) of replicas that are gone")
