"""Where does the Ray of a test's own cluster keep its files?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory


@contextmanager
def ray_folder() -> Iterator[str]:
    """A folder of a short name, since sockets are named in it; goes with the context.

    Processes that are about to end may still write there while it is removed.
    """
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield folder
