"""How does a Serve replica stay on the loopback interface?

Ray's own processes bind to the node's address, which is 127.0.0.1 in a local cluster. The server
between Serve deployments does not: it binds to every interface, without a token. Called from a
deployment's constructor, which Serve runs before it starts that server.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.serve._private import replica


def bind_to_node_address() -> None:
    """Make Serve's inter-deployment server of this process listen on the node's address only."""
    address = ray.util.get_node_ip_address()
    add_port = replica.add_port_to_grpc_server

    def add_port_here(server: Any, where: str) -> int:
        port: int = add_port(server, where.replace("[::]", address))
        return port

    replica.add_port_to_grpc_server = add_port_here
