"""How does a command become a job? By its `--address`, before anything of it runs."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from cli.address import is_job_interface
from cli.job_command import as_job
from cli.job_files import FILES
from cli.job_run import run_as_job


class MayBeJob(TyperCommand):
    """A command that is submitted where its `--address` is a job interface, and runs elsewhere."""

    def invoke(self, ctx: Any) -> Any:
        """See Click: all options are parsed, the function is not yet called."""
        context: typer.Context = ctx
        address = context.params["address"]
        if not is_job_interface(address):
            return super().invoke(ctx)
        return run_as_job(as_job(context, FILES[str(self.name)]), address=address)
