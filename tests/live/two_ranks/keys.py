"""API keys of the instance: one for a team that is held to a rate, one without a limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.live.instance import LiveInstance


@dataclass(frozen=True, kw_only=True)
class Keys:
    """A file of keys, and what callers send."""

    path: Path
    team: str
    unlimited: str


def new_keys(folder: Path) -> Keys:
    """Made by `shardwise key`."""
    path = folder / "keys.yaml"

    def added(*arguments: str) -> str:
        made = LiveInstance(folder, 0).command("key", *arguments, "--file", str(path))
        assert made.returncode == 0, made.stderr
        return made.stdout.split()[-1]

    return Keys(
        path=path, team=added("team", "--tokens-per-minute", "1000"), unlimited=added("unlimited")
    )
