"""Fetch every program that tests need: python -m tests.tooling."""

from __future__ import annotations

import sys
from functools import partial

from tests.tooling.debian import PACKAGES, ToolMissingError, tool
from tests.tooling.helm import helm


def main() -> int:
    """Returns the exit code."""
    fetch = {name: partial(tool, name) for name in PACKAGES} | {"helm": helm}
    for name, fetched in fetch.items():
        try:
            path = fetched()
        except ToolMissingError as error:
            sys.stderr.write(f"error: {error}\n")
            return 4
        sys.stdout.write(f"{name}: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
