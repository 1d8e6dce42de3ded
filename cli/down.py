"""`shardwise down`: end the service and every process it started, and nothing else."""

from __future__ import annotations

from cli.console import out
from cli.up import stop
from serving.instance import Instance


def command() -> None:
    """Drain and stop. Says so if nothing was running."""
    console = out()
    instance = Instance.default()
    head = instance.head()
    if head is None and not instance.processes():
        console.print("nothing is running")
        return
    with console.status("draining and stopping"):
        left = stop(instance, head.pid if head else None)
    console.print("stopped" + (f" ({left} left-over processes ended)" if left else ""))
