"""What does `--address` of search, calibrate and simulate mean? One rule, in one place.

http://HEAD:8265, https://…     the command becomes a job of that cluster (its job interface)
auto, host:port, ray://…        the command stays here and works on that cluster as its driver
"""

from __future__ import annotations

from typing import Annotated

import typer

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="`http://HEAD:8265`: run as a job of that Ray cluster. `auto` (in a job), `host:port` "
        "or `ray://…`: run here, on that cluster. Default: here, on this machine.",
    ),
]


def is_job_interface(address: str | None) -> bool:
    """Whether a command with this address becomes a job."""
    return address is not None and address.strip().lower().startswith(("http://", "https://"))
