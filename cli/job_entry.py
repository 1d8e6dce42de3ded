"""Where does a job begin? Here: a cluster without our packages says so, instead of a traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `python -m cli.job_entry`, in a job."""
    try:
        from cli.main import main as run
    except ImportError as error:
        sys.stderr.write(
            f"error: {sys.executable} on the cluster's head node cannot run Shardwise ({error}). "
            "Fix: install its packages on the nodes (docs/jobs.md, what the cluster needs).\n"
        )
        sys.exit(4)
    run()


if __name__ == "__main__":
    main()
