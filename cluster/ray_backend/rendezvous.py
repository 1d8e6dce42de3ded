"""Where do the ranks of a process group meet? At a store that listens on one address only.

torch's own store binds to every interface of rank 0, and answers whoever comes. Given a socket that
listens already it takes that one; `init_process_group` of the same process then finds the store by
its port (`multi_tenant`) instead of making another.
"""

from __future__ import annotations

import socket
from typing import Any


def meeting_at(host: str, *, world: int) -> tuple[str, Any]:
    """Torch's init_method for `world` ranks, and the store, which must be kept until they met.

    To be called in the process of rank 0, on the node whose address is `host`.
    """
    from torch.distributed import TCPStore

    six = ":" in host
    listening = socket.create_server(
        (host, 0), family=socket.AF_INET6 if six else socket.AF_INET, backlog=max(128, world)
    )
    port = listening.getsockname()[1]
    store = TCPStore(
        host_name=host,
        port=port,
        world_size=world,
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=listening.detach(),
    )
    return f"tcp://[{host}]:{port}" if six else f"tcp://{host}:{port}", store
