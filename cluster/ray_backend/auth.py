"""Which token does a Ray cluster ask this user for? Where Ray keeps it: variable, file, home.

Since Ray 2.60 clusters that Ray starts for itself ask for one; others do with RAY_AUTH_MODE=token.
"""

from __future__ import annotations

import os
from pathlib import Path

WHERE = "RAY_AUTH_TOKEN, the file of RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token"


def ray_token() -> str | None:
    """The token, None where there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    default = Path.home() / ".ray" / "auth_token"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or default)
    return path.read_text(encoding="utf-8").strip() or None if path.is_file() else None
