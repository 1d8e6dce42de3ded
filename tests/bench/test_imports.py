"""Every benchmark can be begun: what it takes from elsewhere is there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.filterwarnings("ignore")  # of what others import
@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("[a-z]*.py")))
def test_it_is_imported(name: str) -> None:
    pytest.importorskip("vllm", reason="needs the cpu or gpu extra")
    assert importlib.import_module(f"bench.{name}").__doc__
