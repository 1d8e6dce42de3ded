"""Fetch every program that tests need: python -m tests.tooling."""

from __future__ import annotations

import sys

from tests.tooling.debian import PACKAGES, ToolMissingError, tool


def main() -> int:
    """Returns the exit code."""
    for name in PACKAGES:
        try:
            path = tool(name)
        except ToolMissingError as error:
            sys.stderr.write(f"error: {error}\n")
            return 4
        sys.stdout.write(f"{name}: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
