"""`shardwise jobs`: the searches, calibrations and simulations that run as jobs of a Ray cluster.

Exit code 0: done. 2: bad input. 4: the cluster does not answer, or the job did not run. `logs`
ends with the exit code of the job.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import out, table
from cli.job_record import JobRecord, recorded
from cli.job_results import bring_all, bring_back
from cli.job_run import COMMAND, cancelled, conclude, connect, follow, say
from cluster.errors import InputError, UnavailableError

if TYPE_CHECKING:
    from cluster.ray_backend.job_client import Job, JobClient

app = typer.Typer(no_args_is_help=True)

AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="RAY_API_SERVER_ADDRESS",
        help="`http://HEAD:8265`. Default: where the job was submitted to from here.",
    ),
]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's name, from `jobs list`.")]
_POLL_S = 0.5
_STOP_S = 60.0


@app.command("list", help="List the jobs of a cluster, the newest first.")
def list_(address: AddressOption = None) -> None:
    """Print a row per job of Shardwise."""
    jobs = [job for job in connect(_needed(address)).jobs() if COMMAND in job.metadata]
    rows = table("", "job", "state", "exit", "started", "seconds", "command")
    rows.columns[-1].justify, rows.columns[-1].no_wrap = "left", False
    for job in jobs:
        rows.add_row(
            job.job_id,
            job.state.lower(),
            "" if job.exit_code is None else str(job.exit_code),
            "" if job.started_s is None else f"{datetime.fromtimestamp(job.started_s):%d %b %H:%M}",
            _seconds(job),
            job.metadata[COMMAND],
        )
    out().print(rows if jobs else "no jobs of Shardwise there")


@app.command("logs", help="Follow what a job prints, from its first line.")
def logs(job: JobArgument, address: AddressOption = None) -> None:
    """Print until the job has ended; Ctrl-C leaves it running. Results come back as at first."""
    client, record = _reach(job, address)
    client.job(job)
    conclude(client, follow(client, job, record=record), record=record)


@app.command("cancel", help="End a job; what it has saved is brought back.")
def cancel(job: JobArgument, address: AddressOption = None) -> None:
    """Stop it, wait for its end, and keep its checkpoint here."""
    client, record = _reach(job, address)
    found = client.job(job)
    if found.ended:
        say(f"job {job} has ended already ({found.state.lower()}).")
        return
    client.stop(job)
    found = _wait(client, job)
    if record is not None:
        bring_back(client, found, record)
    say(cancelled(found, record))


@app.command("fetch", help="Bring back the results of a job that has ended.")
def fetch(
    job: JobArgument,
    address: AddressOption = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="All files of the job into this directory. Default: where the command was to "
            "write them; ./ID for a job that another machine has submitted.",
        ),
    ] = None,
) -> None:
    """Write its files here."""
    client, record = _reach(job, address)
    found = client.job(job)
    if not found.ended:
        raise InputError(
            f"job {job} is {found.state.lower()}: its results are not whole. Fix: wait for it with "
            f"`shardwise jobs logs {job}`."
        )
    if to is None and record is not None:
        written = bring_back(client, found, record)
    else:
        written = bring_all(client, found, to or Path(job))
    say(f"brought back: {', '.join(map(str, written))}" if written else f"job {job} left no files")


def _reach(job: str, address: str | None) -> tuple[JobClient, JobRecord | None]:
    """Where the job is, and what is remembered of it here."""
    record = recorded(job)
    client = connect(_needed(address or (None if record is None else record.address)))
    return client, record


def _needed(address: str | None) -> str:
    if address is None:
        raise InputError(
            "which cluster? Fix: pass --address http://HEAD:8265, or set RAY_API_SERVER_ADDRESS."
        )
    return address


def _wait(client: JobClient, job: str) -> Job:
    """Until nothing of it runs."""
    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        found = client.job(job)
        if found.ended:
            return found
        time.sleep(_POLL_S)
    raise UnavailableError(
        f"job {job} was asked to end and still runs after {_STOP_S:g} s. Fix: look at "
        f"{client.address}."
    )


def _seconds(job: Job) -> str:
    if job.started_s is None:
        return ""
    return f"{(job.ended_s or time.time()) - job.started_s:,.0f}"
