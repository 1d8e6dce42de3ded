"""Ranks meet at a store that nobody reaches over another interface."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the cpu or gpu extra")

RANK = """
import psutil, torch
import torch.distributed as dist
from cluster.ray_backend.rendezvous import meeting_at
meeting, store = meeting_at("127.0.0.1", world=1)
dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
held = torch.ones(1)
dist.all_reduce(held)
open_at = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
print({where.ip.removeprefix("::ffff:") for where in open_at})
"""


def test_a_process_group_listens_on_the_address_where_it_meets_and_nowhere_else():
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RANK],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "{'127.0.0.1'}"
