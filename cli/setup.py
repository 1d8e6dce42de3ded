"""`shardwise setup`: make the bundled model ready to be served, once."""

from __future__ import annotations

from cli.console import out


def command() -> None:
    """Convert the bundled models into the cache; does nothing when they are there."""
    from serving.bundled import prepare

    console = out()
    for path in prepare(console.print):
        console.print(f"  {path}")
