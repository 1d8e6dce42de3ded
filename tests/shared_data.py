"""Where the public data files that some tests compare with are, if they are at hand.

They live beside the repository and are never part of it; a test that needs them skips without.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def shared_data() -> Path | None:
    """The folder of public data beside the repository, None where absent."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    return path if path.is_dir() else None


def require_shared_data() -> Path:
    """The folder, or a skip with its reason."""
    path = shared_data()
    if path is None:
        pytest.skip("the public data files (../shared/data) are not at hand")
    return path
